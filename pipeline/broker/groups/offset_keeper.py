"""Keeps the committed offsets of the groups coordinated here: `Offsets` decides, the keeper writes.

Commits are refused when there is no memory left for the state of clients (`kept_memory`), unless they only replace
offsets of the same size. Groups without members are refused earlier, since a client can make up any number of them, and
their offsets stay for `offsets.retention.minutes`: they must not stop groups that have members.

Invariants: offsets that `of_group` returns are committed in the journal. Changes are applied in the journal's order, so
memory always equals what a restart would load. Expired offsets, offsets of deleted topics, and groups without members
and offsets get tombstones. An offset committed after a topic was deleted belongs to a later topic of that name, and
stays. If this broker learns of the deletion only once the topic was recreated, the times of the commit and of the
deletion decide, because a commit names no topic id.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import trio

from pipeline.broker.groups.model import GroupLog, LoadedGroup, OffsetAndMetadata, Records
from pipeline.broker.groups.offsets import Change, CoordinatedGroups, Offsets, Standing, journal_records
from pipeline.broker.runtime.clock_steps import ClockSteps
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.diagnostics import get_logger
from pipeline.errors import ProtocolError
from pipeline.model import Clock, Offset, TopicPartition
from pipeline.net.signals import Wakeup
from pipeline.protocol.errors import ErrorCode, KafkaError

STRANGERS_SHARE = 0.75
"""Share of the memory for offsets that groups without members may use."""
WARNING_INTERVAL_S = 60.0
GROUPS_AT_ONCE = 100
SLICE_S = 0.005
"""Groups that are checked, or time (some groups are large), before other tasks have their turn."""
FORGOTTEN_BYTES = 64 << 10
"""Approximate size of the removals under way together when a topic is deleted."""
REMOVAL_BYTES = 50
"""Size of an offset's tombstone in the journal beside its names."""

logger = get_logger(__name__)


class PendingWrite(Protocol):
    """A write that was begun."""

    async def wait(self) -> None:
        """Wait until the write is committed. Raises KafkaError."""


class OrderedGroupLog(GroupLog, Protocol):
    """The journal, with writes whose order is fixed when they begin."""

    def begin(
        self, group_id: str, records: Records, *, ended: Callable[[KafkaError | None], None] | None = None
    ) -> PendingWrite:
        """Begin a write. `ended` is called with its outcome; both calls are in the order of the journal."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A deleted topic whose offsets are being removed. `since` holds the offsets committed since this broker learned of
    the deletion. `deleted_ms` is the time of the deletion, and set only if the topic was recreated before that.
    """

    deleted_ms: int | None
    since: set[tuple[str, TopicPartition]] = field(default_factory=set)

    def is_spared(self, group_id: str, topic_partition: TopicPartition, held: OffsetAndMetadata | None) -> bool:
        """True if the offset belongs to a later topic of the name. `held` is None while a commit is under way."""
        if (group_id, topic_partition) in self.since:
            return True
        return self.deleted_ms is not None and (held is None or held.commit_timestamp_ms > self.deleted_ms)


class OffsetKeeper:
    """Keeps offsets as the journal has them. `retention_ms` is how long unused offsets are kept."""

    def __init__(
        self, journal: OrderedGroupLog, groups: CoordinatedGroups, clock: Clock, kept: KeptMemory, *, retention_ms: int
    ) -> None:
        self._journal = journal
        self._groups = groups
        self._clock = clock
        self._retention_ms = retention_ms
        self._most_bytes = kept.add_use("offsets", lambda: self.held_bytes)
        self._begun_bytes = 0
        """Approximate memory of offsets that are being written."""
        self._loaded: dict[int, Offsets] = {}
        self._gone: dict[str, Gone] = {}
        """Deleted topics whose offsets are being removed."""
        self._gone_changed = Wakeup()
        self._warned_s = -WARNING_INTERVAL_S

    # Notices of the journal

    def on_loaded(self, partition: int, groups: Mapping[str, LoadedGroup]) -> None:
        """Take over offsets of groups of a partition."""
        offsets = self._loaded.setdefault(partition, Offsets())
        for group_id, group in groups.items():
            offsets.load(group_id, group.offsets)

    def on_unloaded(self, partition: int) -> None:
        """Drop the offsets of a partition."""
        self._loaded.pop(partition, None)

    @property
    def under_way(self) -> int:
        """Number of offsets with a change under way."""
        return sum(offsets.under_way for offsets in self._loaded.values())

    @property
    def held_bytes(self) -> int:
        """Approximate memory of all offsets."""
        return sum(offsets.held_bytes for offsets in self._loaded.values())

    # Requests

    def of_group(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return a group's offsets, empty for an unknown group. Raises KafkaError if it is not coordinated here."""
        return self._offsets(group_id).of_group(group_id)

    def committed(self) -> Iterator[tuple[str, TopicPartition, Offset]]:
        """Yield group id, partition and offset of every offset kept here. Changes are allowed meanwhile."""
        for offsets in list(self._loaded.values()):
            for group_id in offsets.group_ids:
                for topic_partition, kept in list(offsets.of_group(group_id).items()):
                    yield group_id, topic_partition, kept.offset

    def commit(self, group_id: str, change: Change, records: Records | None = None) -> PendingWrite:
        """Begin to write a change, whose records are `records` if given. Raises KafkaError."""
        offsets = self._offsets(group_id)
        more_bytes = max(0, offsets.growth(group_id, change))
        self._check_room(group_id, more_bytes)
        pending = self._begin(offsets, group_id, change, records, more_bytes)
        if self._gone:
            for topic_partition in change:
                if topic_partition.topic in self._gone:
                    self._gone[topic_partition.topic].since.add((group_id, topic_partition))
        return pending

    def _check_room(self, group_id: str, more_bytes: int) -> None:
        """Raise KafkaError if there is no memory for more offsets of a group."""
        if not more_bytes:
            return
        wanted, most = self.held_bytes + self._begun_bytes + more_bytes, self._most_bytes()
        if wanted <= most * STRANGERS_SHARE:
            return
        if wanted <= most and (self._groups.standing(group_id) or Standing()).has_members:
            return
        now_s = trio.current_time()
        if now_s - self._warned_s >= WARNING_INTERVAL_S:
            self._warned_s = now_s
            logger.warning("offsets_refused", group=group_id, reason="no room; raise client.state.max.bytes")
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "No room for more offsets.")

    async def delete(self, group_id: str, topic_partitions: Collection[TopicPartition] | None = None) -> None:
        """Remove these offsets of a group, or all, and wait until the removal is committed. Raises KafkaError."""
        offsets = self._offsets(group_id)
        await self._begin(offsets, group_id, offsets.deletion(group_id, topic_partitions)).wait()

    def _offsets(self, group_id: str) -> Offsets:
        self._journal.check(group_id)
        return self._loaded[self._journal.partition_for(group_id)]

    def _begin(
        self, offsets: Offsets, group_id: str, change: Change, records: Records | None = None, more_bytes: int = 0
    ) -> PendingWrite:
        def ended(error: KafkaError | None) -> None:
            if error is None:
                offsets.apply(group_id, change)
            end()

        def end() -> None:
            offsets.end(group_id, change)
            self._begun_bytes -= more_bytes

        try:
            records = journal_records(group_id, change) if records is None else records
        except ProtocolError as error:
            raise KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, str(error)) from error
        # Before the journal's `begin`, which calls `ended` at once if there is nothing to write.
        offsets.begin(group_id, change)
        self._begun_bytes += more_bytes
        try:
            return self._journal.begin(group_id, records, ended=ended)
        except BaseException:
            end()
            raise

    # Deletion and expiry

    def forget_topic(self, topic: str, deleted_ms: int | None = None) -> None:
        """Let `forget_for_ever` remove the offsets of a deleted topic, except those committed from now on.

        `deleted_ms` is the time of the deletion if the topic was recreated by now; offsets committed later stay, too.
        """
        self._gone[topic] = Gone(deleted_ms)
        self._gone_changed.set()

    async def forget_for_ever(self) -> None:
        """Remove the offsets of deleted topics, in slices, until cancelled."""
        while True:
            await self._gone_changed.wait_and_clear()
            while self._gone:
                topic, gone = next(iter(self._gone.items()))
                for partition, offsets in list(self._loaded.items()):
                    await self._forget(topic, partition, offsets)
                if self._gone[topic] is gone:  # else the topic was deleted once more
                    del self._gone[topic]

    async def _forget(self, topic: str, partition: int, offsets: Offsets) -> None:
        """Remove a topic's offsets from the groups of a journal partition, as long as the partition is led here."""
        give_way = _GiveWay()
        writes: list[tuple[str, PendingWrite]] = []
        room = FORGOTTEN_BYTES
        for group_id in offsets.known_ids:
            await give_way.if_due()
            topic_partitions = list(offsets.of_topic(group_id, topic))
            record_bytes = len(group_id) + len(topic) + REMOVAL_BYTES
            while topic_partitions:
                if self._loaded.get(partition) is not offsets:
                    return
                count = max(1, room // record_bytes)
                gone = self._gone[topic]
                change = {
                    topic_partition: None
                    for topic_partition in topic_partitions[:count]
                    if not gone.is_spared(group_id, topic_partition, offsets.settled(group_id, topic_partition))
                }
                del topic_partitions[:count]
                try:
                    writes.append((group_id, self._begin(offsets, group_id, change)))
                except KafkaError as error:
                    _warn_of_remains(group_id, error)
                room -= count * record_bytes
                if room <= 0:
                    await _wait_for(writes)
                    room = FORGOTTEN_BYTES
        await _wait_for(writes)

    async def expire_for_ever(self, interval_ms: int) -> None:
        """Remove expired offsets at every interval, except after the clock was set forward (`clock_steps`)."""
        steps = ClockSteps(self._clock(), trio.current_time())
        while True:
            await trio.sleep(interval_ms / 1000)
            if steps.went_forward(self._clock(), trio.current_time()):
                logger.warning("offsets_expiry_waits", reason="the clock was set forward", checked_again_ms=interval_ms)
                continue
            await self.expire()

    async def expire(self) -> None:
        """Remove offsets that have expired, and groups without members and offsets."""
        removed, give_way = 0, _GiveWay()
        for offsets in list(self._loaded.values()):
            for group_id in offsets.group_ids:
                await give_way.if_due()
                standing = self._groups.standing(group_id) or Standing()
                change = offsets.expired(group_id, standing, now_ms=self._clock(), retention_ms=self._retention_ms)
                if not change:
                    continue
                removed += len(change)
                try:
                    await self._begin(offsets, group_id, change).wait()
                except KafkaError as error:
                    _warn_of_remains(group_id, error)  # the next run tries again
        if removed:
            logger.info("offsets_expired", offsets=removed)
        await self._remove_groups()

    async def _remove_groups(self) -> None:
        give_way = _GiveWay()
        for group_id in self._groups.group_ids:
            await give_way.if_due()
            standing = self._groups.standing(group_id)
            try:
                if standing is None or standing.has_members or not self._offsets(group_id).is_empty(group_id):
                    continue
                await self._groups.remove_group(group_id)
                logger.info("group_removed", group=group_id)
            except KafkaError as error:
                if error.code not in {ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND}:
                    logger.warning("group_not_removed", group=group_id, error=str(error))


async def _wait_for(writes: list[tuple[str, PendingWrite]]) -> None:
    """Wait until these writes have ended, and remove them from the list."""
    while writes:
        group_id, pending = writes.pop()
        try:
            await pending.wait()
        except KafkaError as error:
            _warn_of_remains(group_id, error)


class _GiveWay:
    """Gives other tasks their turn after GROUPS_AT_ONCE groups or SLICE_S."""

    def __init__(self) -> None:
        self._count = 0
        self._until = trio.current_time() + SLICE_S

    async def if_due(self) -> None:
        """Call between two groups."""
        self._count += 1
        if self._count % GROUPS_AT_ONCE == 0 or trio.current_time() > self._until:
            await trio.lowlevel.checkpoint()
            self._until = trio.current_time() + SLICE_S


def _warn_of_remains(group_id: str, error: KafkaError) -> None:
    logger.warning("offsets_not_removed", group=group_id, error=str(error))
