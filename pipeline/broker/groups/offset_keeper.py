"""The committed offsets of the groups coordinated here: `Offsets` decides, this writes and lets time pass.

Invariants: what `of_group` tells is in the journal, as durable as its settings say. A change is applied by the journal,
in its order, so memory never differs from what a restart would load. An expired offset, one of a deleted topic, and a
group of which nothing is left each get a tombstone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import structlog
import trio

from pipeline.broker.groups.model import Journal, LoadedGroup, OffsetAndMetadata
from pipeline.broker.groups.offsets import Change, Membership, Offsets, Standing, journal_records
from pipeline.model import Clock, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

GROUPS_AT_ONCE = 100

log = structlog.get_logger()


class OrderedJournal(Journal, Protocol):
    """The journal, with the moment at which a write has its place in it."""

    async def write(
        self,
        group_id: str,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        then: Callable[[], None] | None = None,
    ) -> None:
        """As `Journal.write`; `then` is called once it is written, in the order of the journal."""
        ...


class OffsetKeeper:
    """Listens to the journal. `retention_ms` is how long offsets live that nobody uses."""

    def __init__(self, journal: OrderedJournal, membership: Membership, clock: Clock, *, retention_ms: int) -> None:
        self._journal = journal
        self._membership = membership
        self._clock = clock
        self._retention_ms = retention_ms
        self._loaded: dict[int, Offsets] = {}

    # What the journal tells

    def on_loaded(self, partition: int, groups: Mapping[str, LoadedGroup]) -> None:
        """The offsets of the groups of a partition."""
        self._loaded[partition] = Offsets(
            {group_id: dict(group.offsets) for group_id, group in groups.items() if group.offsets}
        )

    def on_unloaded(self, partition: int) -> None:
        """They are somebody else's."""
        self._loaded.pop(partition, None)

    # What handlers ask

    def of_group(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """A group's offsets; none where there is no such group. Raises KafkaError if it is not coordinated here."""
        return self._offsets(group_id).of_group(group_id)

    def committed(self) -> Iterator[tuple[str, TopicPartition, Offset]]:
        """Every offset kept here: group, partition, next offset to read."""
        for offsets in self._loaded.values():
            for group_id in offsets.group_ids:
                for topic_partition, kept in offsets.of_group(group_id).items():
                    yield group_id, topic_partition, kept.offset

    async def commit(self, group_id: str, change: Change) -> None:
        """Write a change. Raises KafkaError; nothing was changed then."""
        await self._write(self._offsets(group_id), group_id, change)

    async def delete(self, group_id: str, names: Collection[TopicPartition] | None = None) -> None:
        """Forget these offsets of a group, or all. Raises KafkaError."""
        offsets = self._offsets(group_id)
        deletion = offsets.deletion(group_id, list(offsets.of_group(group_id)) if names is None else names)
        await self._write(offsets, group_id, deletion)

    def _offsets(self, group_id: str) -> Offsets:
        self._journal.check(group_id)
        return self._loaded[self._journal.partition_for(group_id)]

    async def _write(self, offsets: Offsets, group_id: str, change: Change) -> None:
        offsets.begin(group_id, change)
        try:
            await self._journal.write(
                group_id, journal_records(group_id, change), then=partial(offsets.apply, group_id, change)
            )
        finally:
            offsets.end(group_id, change)

    # What time does

    async def forget_topic(self, topic: str) -> None:
        """Remove the offsets of a topic that is gone."""
        for offsets in list(self._loaded.values()):
            for group_id, change in offsets.of_topic(topic).items():
                await self._remove(offsets, group_id, change)

    async def expire_for_ever(self, interval_ms: int) -> None:
        """Look for what has expired every so often, until cancelled."""
        while True:
            await trio.sleep(interval_ms / 1000)
            await self.expire()

    async def expire(self) -> None:
        """Remove what has expired by now, and the groups of which nothing is left."""
        removed = 0
        for offsets in list(self._loaded.values()):
            for count, group_id in enumerate(offsets.group_ids, 1):
                standing = self._membership.standing(group_id) or Standing()
                change = offsets.expired(group_id, standing, now_ms=self._clock(), retention_ms=self._retention_ms)
                if change:
                    removed += len(change)
                    await self._remove(offsets, group_id, change)
                elif count % GROUPS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
        if removed:
            log.info("offsets_expired", offsets=removed)
        await self._remove_groups()

    async def _remove_groups(self) -> None:
        for group in self._membership.groups:
            standing = self._membership.standing(group.id)
            try:
                if standing is None or standing.has_members or not self._offsets(group.id).is_empty(group.id):
                    continue
                await self._membership.remove_group(group.id)
                log.info("group_removed", group=group.id)
            except KafkaError as error:
                if error.code not in {ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND}:
                    log.warning("group_not_removed", group=group.id, error=str(error))

    async def _remove(self, offsets: Offsets, group_id: str, change: Change) -> None:
        """As `_write`, for what nobody asked for: the next time is as good."""
        try:
            await self._write(offsets, group_id, change)
        except KafkaError as error:
            log.warning("offsets_not_removed", group=group_id, error=str(error))
