"""Copies the committed offsets of one source's groups to the hub, so that a group can move there and go on.

A round lists the groups of each broker of the source, fetches their offsets in pages, and hands the groups that changed
to the writer (`offset_writer.py`). Invariants:
A. An offset belongs to the topic whose partition is mirrored: the table is looked up before the offsets are fetched,
   and the source's topic ids are compared with it afterwards. So offsets of a topic that was created again are copied
   to the replica partitions of that topic alone.
B. A broker of the source that does not answer costs its own groups a round, and other groups nothing.
C. An offset that a broker has comes before one of the same group that ZooKeeper has.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import trio

from pipeline.client.admin.groups import CommittedOffset
from pipeline.client.admin.many_groups import fetch_offsets_of, find_live_brokers, list_groups_of
from pipeline.client.admin.offsets import list_offsets_once
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationUnavailableError, PipelineError
from pipeline.mirror.config import MirrorConfig, SourceConfig
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.groups.offset_journal import GroupOffsetJournal
from pipeline.mirror.groups.offset_writer import CopiedGroup, GroupOffsetWriter, GroupRound
from pipeline.mirror.groups.zookeeper_groups import ZooKeeperGroups
from pipeline.mirror.journals.table import Assignment
from pipeline.mirror.matching import match_within_bound
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.selection import NameSelection, compile_patterns
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pipeline.protocol.schema import ZERO_UUID

MAX_PAGE_GROUPS = 200
MAX_PAGE_OFFSETS = 2_000
"""Offsets of one OffsetFetch response, by the last count of each group: decoding it must hold up copying briefly."""
NEW_GROUP_OFFSETS = 50
"""Offsets that a group is taken to have before its first answer."""
MAX_ZOOKEEPER_READS = 16
FULL_CHECK_ROUNDS = 30
"""Rounds after which unchanged groups are compared with the hub, too: their offsets may have expired there."""
MAX_LEFT_ALONE_SHOWN = 100

LANE = "group offsets"

HAS_MEMBERS = "has members at the hub"
MOVED_ON = "moved on at the hub"

logger = get_logger(__name__)

_Found = dict[str, dict[TopicPartition, CommittedOffset]]
"""Offsets by group and source partition."""


def group_settings(config: MirrorConfig) -> tuple[object, ...]:
    """Return the settings that a GroupOffsetCopier has from its construction on."""
    return (
        config.group_offsets_enabled,
        config.group_offsets_interval_ms,
        config.groups,
        config.groups_exclude,
        config.produce_timeout_ms,
        config.retry_backoff_ms,
    )


class GroupOffsetCopier:
    """Copies the groups of one source while `run` runs. `copies` are the source's partitions, as their copier has them.

    Raises ConfigurationError for a bad pattern.
    """

    def __init__(
        self,
        source_config: SourceConfig,
        config: MirrorConfig,
        source: Cluster,
        destination: Cluster,
        copies: Mapping[TopicPartition, PartitionCopy],
        journal: GroupOffsetJournal,
        *,
        metrics: MirrorMetrics,
    ) -> None:
        self.name = source_config.name
        self._source = source
        self._destination = destination
        self._copies = copies
        self._journal = journal
        self._interval_s = config.group_offsets_interval_ms / 1000
        self._timeout_s = config.produce_timeout_ms / 1000
        self._selection = NameSelection(
            compile_patterns("groups", config.groups),
            compile_patterns("groups.exclude", config.groups_exclude),
            match_within_bound,
        )
        self._writer = GroupOffsetWriter(self.name, destination, copies, journal, metrics, timeout_s=self._timeout_s)
        connect = source_config.zookeeper_connect
        self._zookeeper = (
            None
            if connect is None
            else ZooKeeperGroups(
                connect,
                timeout_s=self._timeout_s,
                retry_backoff_s=config.retry_backoff_ms / 1000,
                security=source_config.zookeeper_security,
            )
        )
        self._states: dict[str, CopiedGroup] = {}
        self.is_due: Callable[[], bool] = lambda: True
        """Returns False while another member of the mirror's group copies these offsets."""
        self._rounds = 0
        self._errors: Sequence[str] = ("not reached yet",)
        self._started_at = trio.current_time()
        self._copied_at: float | None = None
        """Beginning of the last round without errors: later commits are perhaps not copied."""
        metrics.show_group_offsets_age(
            self.name, lambda: self._age_s(self._started_at) if self.is_due() else float("nan")
        )

    async def run(self) -> None:
        """Copy until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._zookeeper is not None:
                nursery.start_soon(self._zookeeper.run)
            while True:
                if self.is_due():
                    await self._copy_all()
                elif self._rounds:
                    self._forget()
                await trio.sleep(self._interval_s)

    def _forget(self) -> None:
        """Begin anew when these offsets are due again: another member may have copied meanwhile."""
        self._states.clear()
        self._rounds, self._errors, self._copied_at, self._started_at = 0, (), None, trio.current_time()

    def status(self) -> dict[str, Any] | None:
        """Return the part of `/v1/status` about this source's groups; None if another member copies them."""
        if not self.is_due():
            return None
        left_alone: list[dict[str, Any]] = [
            {"group": group, "reason": HAS_MEMBERS} for group, state in self._states.items() if state.has_members
        ]
        left_alone += [{"group": group, "reason": reason} for group, reason in self._selection.slow.items()]
        left_alone += [
            {"group": group, "topic": topic, "partition": number, "reason": MOVED_ON}
            for group, state in self._states.items()
            for topic, number in state.moved_on
        ]
        return {
            "copied": self._writer.copied,
            "waiting": sum(state.waiting for state in self._states.values()),
            "left_alone": left_alone[:MAX_LEFT_ALONE_SHOWN],
            "left_alone_count": len(left_alone),
            "error": "; ".join(self._errors) or None,
            "age_seconds": None if self._copied_at is None else self._age_s(self._copied_at),
        }

    def _age_s(self, otherwise: float) -> float:
        """Return the time since the beginning of the last round without errors, or since another moment."""
        since = otherwise if self._copied_at is None else self._copied_at
        return round(trio.current_time() - since, 3)

    async def _copy_all(self) -> None:
        """Make one round. All errors go to the status."""
        current = GroupRound(is_full=self._rounds % FULL_CHECK_ROUNDS == 0)
        self._rounds += 1
        began_at = trio.current_time()
        try:
            await self._go_round(current)
        except PipelineError as error:
            current.note(error)
        if not current.errors:
            self._copied_at = began_at
        elif list(self._errors) != current.errors:
            logger.warning("group_offsets_failed", source=self.name, errors=current.errors)
        self._errors = current.errors

    async def _go_round(self, current: GroupRound) -> None:
        # The assignments before any offset is read: an offset of a topic is not taken for one of a topic that was
        # created again meanwhile.
        current.assignments = {each: copy.assignment for each, copy in self._copies.items()}
        await self._look_up_ends(current)
        names = await self._names_of_ids()
        in_zookeeper = await self._list_in_zookeeper(current)
        brokers = await find_live_brokers(self._source, timeout_s=self._timeout_s)
        async with trio.open_nursery() as nursery:
            for broker in brokers:
                nursery.start_soon(self._copy_from, broker, names, in_zookeeper, current)
        if not current.is_listed:  # a broker may have newer offsets of a group than ZooKeeper (invariant C)
            return
        rest = sorted(in_zookeeper - current.taken)
        current.taken.update(rest)
        await self._copy_pages(None, rest, names, in_zookeeper, current)
        for group in self._states.keys() - current.taken:
            del self._states[group]
        if current.is_full and not current.errors:
            await self._journal.read_on()
            gone = [group for group in self._journal.groups_of(self.name) if group not in current.taken]
            await self._writer.forget([group for group in gone if self._selection.selects(group)], current)

    async def _look_up_ends(self, current: GroupRound) -> None:
        """Ask the hub for the ends of replicas that other members copy. Those without answer keep the last known one.

        Offsets behind it wait, as they do for a replica that is behind.
        """
        elsewhere = {copy.assignment.replica: copy for copy in self._copies.values() if copy.is_elsewhere}
        if elsewhere:
            wanted = dict.fromkeys(elsewhere, LATEST)
            found, errors = await list_offsets_once(self._destination, wanted, timeout_s=self._timeout_s, lane=LANE)
            for replica, listed in found.items():
                elsewhere[replica].replica_end = listed.offset
            for error in errors:
                current.note(error)

    async def _names_of_ids(self) -> Mapping[UUID, str]:
        """Return the names of mirrored topics by id. The source is asked only if the table has a topic without id."""
        names = {copy.assignment.source.topic_id: each.topic for each, copy in self._copies.items()}
        if ZERO_UUID in names:
            view = await self._source.fetch_all_topics(timeout_s=self._timeout_s)
            names |= {topic.id: topic.name for topic in view.topics.values()}
        return names

    async def _list_in_zookeeper(self, current: GroupRound) -> set[str]:
        if self._zookeeper is None:
            return set()
        try:
            return {group for group in await self._zookeeper.list_groups() if self._selection.selects(group)}
        except PipelineError as error:
            current.is_listed = False
            current.note(error)
            return set()

    async def _copy_from(
        self, broker: BrokerId, names: Mapping[UUID, str], in_zookeeper: set[str], current: GroupRound
    ) -> None:
        """Copy the groups that a broker of the source coordinates."""
        try:
            listed = await list_groups_of(self._source, broker, timeout_s=self._timeout_s)
        except PipelineError as error:
            current.is_listed = False
            current.note(error)
            return
        groups = [one.id for one in listed if one.id not in current.taken and self._selection.selects(one.id)]
        current.taken.update(groups)
        await self._copy_pages(broker, groups, names, in_zookeeper, current)

    async def _copy_pages(
        self,
        broker: BrokerId | None,
        groups: Sequence[str],
        names: Mapping[UUID, str],
        in_zookeeper: set[str],
        current: GroupRound,
    ) -> None:
        """Copy groups page by page; without a broker, their offsets in ZooKeeper alone."""
        for page in self._pages(groups):
            try:
                found: _Found = {group: {} for group in page}
                await self._read_zookeeper([group for group in page if group in in_zookeeper], found, current)
                if broker is not None:
                    await self._fetch_source(broker, names, found, current)
                await self._copy_page(found, current)
            except PipelineError as error:
                current.note(error)
                if isinstance(error, UNREACHABLE):
                    return

    def _pages(self, groups: Sequence[str]) -> Iterator[list[str]]:
        """Divide groups into pages of bounded numbers of groups and offsets."""
        page: list[str] = []
        offsets = 0
        for group in groups:
            state = self._states.get(group)
            count = NEW_GROUP_OFFSETS if state is None else state.count
            if page and (len(page) == MAX_PAGE_GROUPS or offsets + count > MAX_PAGE_OFFSETS):
                yield page
                page, offsets = [], 0
            page.append(group)
            offsets += count
        if page:
            yield page

    async def _read_zookeeper(self, groups: Sequence[str], found: _Found, current: GroupRound) -> None:
        """Add offsets that old consumers keep in ZooKeeper. Those of a group that cannot be read are left out.

        Raises CoordinationUnavailableError.
        """
        zookeeper = self._zookeeper
        if zookeeper is None or not groups:
            return
        left = iter(groups)
        failures: list[CoordinationUnavailableError] = []

        async def read() -> None:
            for group in left:
                try:
                    offsets = await zookeeper.read_offsets(group)
                except CoordinationUnavailableError as error:
                    failures.append(error)
                    return
                except PipelineError as error:  # such as a znode that this mirror may not read
                    current.note(error)
                    continue
                found[group].update({each: CommittedOffset(offset=offset) for each, offset in offsets.items()})

        async with trio.open_nursery() as nursery:
            for _ in range(MAX_ZOOKEEPER_READS):
                nursery.start_soon(read)
        if failures:
            raise failures[0]

    async def _fetch_source(
        self, broker: BrokerId, names: Mapping[UUID, str], found: _Found, current: GroupRound
    ) -> None:
        """Add the offsets that a broker of the source has. A group that it refuses is left out of this round."""
        answered = await fetch_offsets_of(
            self._source,
            broker,
            dict.fromkeys(found),
            lambda name, topic_id: name or names.get(topic_id),
            timeout_s=self._timeout_s,
        )
        for group in list(found):
            offsets = answered.get(group)
            if isinstance(offsets, KafkaError):
                current.note(offsets)
                del found[group]
            elif offsets is not None:
                found[group].update({each: one for each, one in offsets.items() if one is not None})

    async def _copy_page(self, found: _Found, current: GroupRound) -> None:
        """Hand on the groups whose offsets changed, or that have something left to do."""
        changed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        for group, offsets in found.items():
            mirrored = {each: one for each, one in offsets.items() if each in current.assignments}
            fingerprint = hash(frozenset(mirrored.items()))
            state = self._states.setdefault(group, CopiedGroup(fingerprint, len(offsets), is_settled=not mirrored))
            if not mirrored:
                self._states[group] = CopiedGroup(fingerprint, len(offsets), is_settled=True)
            elif current.is_full or state.fingerprint != fingerprint or not state.is_settled:
                state.fingerprint, state.count, state.is_settled = fingerprint, len(offsets), False
                changed[group] = mirrored
        if not changed:
            return
        named = {each for mirrored in changed.values() for each in mirrored}
        right = await self._partitions_of_table(named, current.assignments)
        wanted = {
            group: {current.assignments[each].replica: one for each, one in mirrored.items() if each in right}
            for group, mirrored in changed.items()
        }
        await self._writer.write(wanted, self._states, current)
        for group, mirrored in changed.items():
            if not right.issuperset(mirrored):  # the source's answer may change soon
                self._states[group].is_settled = False

    async def _partitions_of_table(
        self, partitions: Collection[TopicPartition], assignments: Mapping[TopicPartition, Assignment]
    ) -> set[TopicPartition]:
        """Return the partitions whose topics the source has now under the ids of the table (invariant A)."""
        names = sorted({each.topic for each in partitions})
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
        response: MetadataResponse = await self._source.request_any(request, timeout_s=self._timeout_s)
        ids = {topic.name: topic.topic_id for topic in response.topics if topic.error_code == ErrorCode.NONE}
        return {
            each
            for each in partitions
            for recorded in [assignments[each].source.topic_id]
            if each.topic in ids and (ZERO_UUID in (ids[each.topic], recorded) or ids[each.topic] == recorded)
        }
