"""The committed offsets of the groups coordinated here: `Offsets` decides, this writes and lets time pass.

Invariants: what `of_group` tells is in the journal, as durable as its settings say. A change is applied by the journal,
in its order, so memory never differs from what a restart would load. An expired offset, one of a deleted topic, and a
group of which nothing is left each get a tombstone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

import structlog
import trio

from pipeline.broker.groups.model import Journal, LoadedGroup, OffsetAndMetadata
from pipeline.broker.groups.offsets import Change, Membership, Offsets, Standing, journal_records
from pipeline.model import Clock, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

GROUPS_AT_ONCE = 100

log = structlog.get_logger()


class Pending(Protocol):
    """A write that has its place in the journal."""

    async def wait(self) -> None:
        """Until it is written. Raises KafkaError."""
        ...


class OrderedJournal(Journal, Protocol):
    """The journal, with the moment at which a write has its place in it."""

    def begin(
        self,
        group_id: str,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        ended: Callable[[KafkaError | None], None] | None = None,
    ) -> Pending:
        """As `Journal.write`, its place taken now; `ended` is called when it has ended, in the order of the journal."""
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

    def commit(self, group_id: str, change: Change) -> Pending:
        """Begin to write a change: whatever happens to the group from now on comes after it. Raises KafkaError."""
        return self._begin(self._offsets(group_id), group_id, change)

    async def delete(self, group_id: str, names: Collection[TopicPartition] | None = None) -> None:
        """Forget these offsets of a group, or all. Raises KafkaError."""
        offsets = self._offsets(group_id)
        await self._begin(offsets, group_id, offsets.deletion(group_id, names)).wait()

    def _offsets(self, group_id: str) -> Offsets:
        self._journal.check(group_id)
        return self._loaded[self._journal.partition_for(group_id)]

    def _begin(self, offsets: Offsets, group_id: str, change: Change) -> Pending:
        def ended(error: KafkaError | None) -> None:
            if error is None:
                offsets.apply(group_id, change)
            offsets.end(group_id, change)

        offsets.begin(group_id, change)
        try:
            return self._journal.begin(group_id, journal_records(group_id, change), ended=ended)
        except KafkaError:
            offsets.end(group_id, change)
            raise

    # What time does

    def forget_topic(self, topic: str) -> None:
        """Begin to remove the offsets of a topic that is gone. Those of a later one of that name come after it."""
        for offsets in self._loaded.values():
            for group_id, change in offsets.of_topic(topic).items():
                try:
                    self._begin(offsets, group_id, change)
                except KafkaError as error:
                    _warn_of_remains(group_id, error)

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
        """For what nobody asked for: the next time is as good."""
        try:
            await self._begin(offsets, group_id, change).wait()
        except KafkaError as error:
            _warn_of_remains(group_id, error)


def _warn_of_remains(group_id: str, error: KafkaError) -> None:
    log.warning("offsets_not_removed", group=group_id, error=str(error))
