"""Work of a mirror that several processes share: the partitions of the table that its flows select, and their rates."""

import os
import socket
from collections.abc import Collection, Mapping
from random import Random
from typing import Any

import trio

from pipeline.coordination.interface import CoordinationClient
from pipeline.mirror.changes import selection_of
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying.copies import Advice
from pipeline.mirror.hub import Hub
from pipeline.mirror.sharing.assignment import WorkUnit, duties_of
from pipeline.mirror.sharing.group import MirrorGroup
from pipeline.mirror.sharing.group_znodes import MirrorProcess
from pipeline.mirror.sharing.share import Share
from pipeline.mirror.source_mirror import SourceMirror
from pipeline.model import TopicPartition

NOWHERE = "unknown"


class SharedWork:
    """The part of this process in the work of its group; `run` takes part. `address` is that of its HTTP server."""

    def __init__(
        self,
        config: MirrorConfig,
        client: CoordinationClient,
        hub: Hub,
        sources: Mapping[str, SourceMirror],
        *,
        rng: Random,
    ) -> None:
        self.address = NOWHERE
        self._hub = hub
        self._sources = sources
        self._joined_ms = hub.clock()
        host = socket.gethostname().replace("/", "-")
        self.group = MirrorGroup(
            client,
            config.group,
            f"{host}-{os.getpid()}-{rng.getrandbits(32):08x}",
            describe=self._describe,
            units=self._units,
            rates=self._rates,
            refused=self._refused,
            on_share=self._take,
            work_changed=hub.work_changed,
            clock=hub.clock,
            session_timeout_s=config.zookeeper_session_timeout_ms / 1000,
            rebalance_interval_s=config.rebalance_interval_ms / 1000,
        )
        hub.has_duties_of = self.has_duties_of
        self._take(self.group.share)

    async def run(self) -> None:
        """Take part until cancelled. The hub is open by then."""
        await self.group.run()

    def has_duties_of(self, source: str) -> bool:
        """Return True if this process, and certainly no other one, does the work of a source beside its partitions."""
        return self.group.has_duties_of(source)

    def document(self) -> dict[str, Any]:
        """Return the part of `/v1/status` about the group."""
        group = self.group
        assigned = group.share.assigned
        held = dict.fromkeys(group.members, 0)
        for unit, holding in assigned.items():
            if unit.topic:
                held[holding.member] = held.get(holding.member, 0) + 1
        units = self._units()
        return {
            "name": group.name,
            "member": group.member,
            "is_registered": group.share.is_registered,
            "leader": group.leader,
            "error": group.problem,
            "unowned": sum(group.share.holder_of(unit) is None for unit in units),
            "members": [
                {
                    "member": name,
                    "host": each.host,
                    "pid": each.pid,
                    "http": each.http,
                    "partitions": held[name],
                    "selects_the_same": name in group.share.members,
                }
                for name, each in sorted(group.members.items())
            ],
            "duties": {name: group.share.holder_of(duties_of(name)) for name in self._sources},
        }

    def _describe(self) -> MirrorProcess:
        return MirrorProcess(
            host=socket.gethostname(),
            pid=os.getpid(),
            http=self.address,
            joined_ms=self._joined_ms,
            selection=selection_of(self._hub.config.now),
        )

    def _units(self) -> Collection[WorkUnit]:
        names = self._sources
        found = {duties_of(name) for name in names}
        for assignment in self._hub.journal.table.assignments():
            source, partition = assignment.source.cluster, assignment.source.partition
            if source in names and self._hub.selected.is_selected(source, partition.topic):
                found.add(WorkUnit(source, partition.topic, partition.partition))
        return found

    def _rates(self) -> Mapping[WorkUnit, float]:
        now = trio.current_time()
        return {
            source.copies.unit_of(partition): rate
            for source in self._sources.values()
            for partition, copy in source.copies.states.items()
            if (rate := copy.progress.rates(now)[0]) > 0
        }

    def _refused(self) -> Mapping[WorkUnit, TopicPartition]:
        return {
            source.copies.unit_of(partition): copy.assignment.replica
            for source in self._sources.values()
            for partition, copy in source.copies.states.items()
            if not copy.is_rejected and copy.trouble is not None and copy.trouble.advice is Advice.JOIN_GROUP
        }

    def _take(self, share: Share) -> None:
        self._hub.share = share
        for source in self._sources.values():
            source.copies.take_share(share)
