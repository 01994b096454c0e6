"""The logs of this broker's replicas: found, placed, created, noted as served, and removed, each log dir by itself.

Invariants:

- In each log dir one opening or settling is under way at a time. A log dir whose disk does not answer delays only its
  own logs.
- A partition whose log is being opened, created or removed is busy (`PendingCalls`), also after the caller has gone on:
  it never gets a second log in another log dir. A new log for which no call was begun goes to a log dir that answers.
- A log is noted as served on the disk before its partition has a role.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import trio

from pipeline.broker.cluster.view import PartitionView
from pipeline.broker.runtime.disk_threads import STALLED_S, DiskThreads
from pipeline.broker.runtime.pending_calls import PendingCall, PendingCalls
from pipeline.broker.settings.topic import TopicSettings
from pipeline.diagnostics import get_logger
from pipeline.errors import DiskFullError, PipelineError, StorageError
from pipeline.log.config import LogConfig
from pipeline.log.directories.broker_directories import LogDirectories, create_each
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.displacement import is_displaced, make_way
from pipeline.log.directories.logs_set_aside import HeldLog, LogName
from pipeline.log.directories.settlement import note_served, settle_tails
from pipeline.log.directories.tails import assign_topic_id
from pipeline.log.flush_promise import promise_flushes
from pipeline.log.held_files import hold_end_open
from pipeline.log.loader import NewLog
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Clock, TopicPartition
from pipeline.net.open_files import is_half_free

LOGS_PER_THREAD = 64
"""Number of logs that one call in a thread opens."""
LOGS_PER_REMOVAL = 256
"""Number of logs that one call in a thread removes. A topic recreated under the name waits only for these."""
_NONE: Mapping[TopicPartition, uuid.UUID] = MappingProxyType({})

Opened = dict[TopicPartition, UnifiedLog | PipelineError]
"""The log of each partition, or the error that prevented it."""
_Result = TypeVar("_Result")

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPartition:
    """A partition of which this broker holds a replica."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID
    settings: TopicSettings
    view: PartitionView

    @property
    def log_name(self) -> LogName:
        """The name of the partition's log."""
        return LogName(self.topic_partition, self.topic_id)


def log_config(settings: TopicSettings, producer_expiration_ms: int) -> LogConfig:
    """Return the settings of a topic's logs. The partition enforces `flush.messages` itself, without blocking."""
    roll_ms = min(settings.segment_ms, settings.max_compaction_lag_ms)  # only closed segments are compacted
    return LogConfig(
        segment_bytes=settings.segment_bytes,
        segment_ms=roll_ms if settings.is_compacted else settings.segment_ms,
        index_interval_bytes=settings.index_interval_bytes,
        flush_ms=settings.flush_ms,
        deletes=settings.is_deleted_from,
        retention_ms=None if settings.retention_ms < 0 else settings.retention_ms,
        retention_bytes=None if settings.retention_bytes < 0 else settings.retention_bytes,
        delete_delay_ms=settings.file_delete_delay_ms,
        producer_expiration_ms=producer_expiration_ms,
    )


@dataclass(slots=True)
class _Share:
    """Partitions whose logs are to be found, or created, in one log dir."""

    found: list[AssignedPartition] = field(default_factory=list)
    new: list[AssignedPartition] = field(default_factory=list)

    def take(self, count: int) -> "_Share":
        """Remove so many partitions from the share and return them."""
        some = _Share(self.found[:count], self.new[: max(0, count - len(self.found))])
        self.found, self.new = self.found[count:], self.new[len(some.new) :]
        return some

    @property
    def items(self) -> list[AssignedPartition]:
        """All partitions of the share."""
        return self.found + self.new


def _drop(_result: object) -> None:
    """Drop the result of a call that is late."""


class ReplicaLogs:
    """The logs in the log dirs of one broker."""

    def __init__(
        self, directories: LogDirectories, disks: DiskThreads, clock: Clock, producer_expiration_ms: int
    ) -> None:
        self.pending = PendingCalls()
        self._directories = directories
        self._disks = disks
        self._clock = clock
        self._producer_expiration_ms = producer_expiration_ms
        self._lanes = {directory.path: trio.Lock() for directory in directories.opened}
        self._has_settled = False
        self._unsettled: dict[TopicPartition, uuid.UUID] = {}
        self._opening: set[TopicPartition] = set()
        """Partitions whose log a caller of `open` waits for."""
        self._opened_late: dict[TopicPartition, UnifiedLog] = {}
        """Logs that were opened after their caller had gone on, for the next caller. Without them a log dir whose calls
        are all late would never open a log."""
        self._removals: dict[LogName, PendingCall] = {}
        """Logs set aside that are being removed. The partition of the name is not busy: it has another log."""

    def log_config(self, settings: TopicSettings) -> LogConfig:
        """Return the settings of a topic's logs on this broker."""
        return log_config(settings, self._producer_expiration_ms)

    def is_busy(self, topic_partition: TopicPartition) -> bool:
        """Return True if the log of this partition is being opened, created, changed or removed."""
        return topic_partition in self._opening or self.pending.is_busy(topic_partition)

    def awaited_log_dirs(self, topic_partition: TopicPartition) -> frozenset[Path]:
        """Return the log dirs whose calls under way hold up this partition."""
        calls = [pending for name, pending in self._removals.items() if name.topic_partition == topic_partition]
        busy = self.pending.find(topic_partition)
        return frozenset(pending.log_dir for pending in [*calls, *([] if busy is None else [busy])])

    # Opening

    async def open(self, items: Sequence[AssignedPartition]) -> Opened:
        """Return the logs of partitions that are not busy, found or created, or the errors that prevented it.

        A partition whose log dir does not answer in time is left out, and busy if a call was begun for it.
        """
        names = {item.topic_partition for item in items}
        opened: Opened = {}
        self._opening |= names
        try:
            items = await self._make_way(await self._wait_for_removals(items), opened)
            items = self._take_late(items, opened)
            while items:
                shares, items = self._share_out(items, opened), []
                async with trio.open_nursery() as nursery:
                    for directory, share in shares.items():
                        nursery.start_soon(self._open_share, directory, share, opened, items)
        finally:
            self._opening -= names
        return opened

    def _take_late(self, items: Sequence[AssignedPartition], opened: Opened) -> Sequence[AssignedPartition]:
        """Take the logs that were opened late and still are as they are wanted; returns the other items."""
        for item in items:
            late = self._opened_late.pop(item.topic_partition, None)
            if late is not None and self._is_as_wanted(item, late):
                opened[item.topic_partition] = late
        return [item for item in items if item.topic_partition not in opened]

    def _is_as_wanted(self, item: AssignedPartition, late: UnifiedLog) -> bool:
        try:
            is_there = self._directories.get(item.topic_partition) is late
        except PipelineError:
            return False
        has_promise = late.is_flushed_first == (item.settings.flush_messages == 1)
        return is_there and has_promise and late.failure is None and late.topic_id == item.topic_id

    def _keep_late(self, found: Opened) -> None:
        """Keep logs, but no errors: the next caller tries again."""
        self._opened_late.update((name, late) for name, late in found.items() if isinstance(late, UnifiedLog))

    async def _wait_for_removals(self, items: Sequence[AssignedPartition]) -> Sequence[AssignedPartition]:
        """Return the partitions that no removal of a log, or of a log set aside, delays any more."""
        removals = {self._removals[item.log_name]: None for item in items if item.log_name in self._removals}
        await self.pending.wait(removals)
        busy = await self.pending.wait_until_free(item.topic_partition for item in items)
        return [item for item in items if item.topic_partition not in busy and item.log_name not in self._removals]

    async def _make_way(self, items: Sequence[AssignedPartition], opened: Opened) -> Sequence[AssignedPartition]:
        """Set aside the logs of other topics in the places of these; return the items whose place is free."""
        shares: dict[LogDirectory, list[AssignedPartition]] = {}
        for item in items:
            for directory in self._directories.may_displace(item.log_name):
                shares.setdefault(directory, []).append(item)
        if not shares:
            return items
        unanswered: set[TopicPartition] = set()
        async with trio.open_nursery() as nursery:
            for directory, share in shares.items():
                nursery.start_soon(self._make_way_in, directory, share, opened, unanswered)
        return [item for item in items if item.topic_partition not in opened and item.topic_partition not in unanswered]

    async def _make_way_in(
        self,
        directory: LogDirectory,
        share: Sequence[AssignedPartition],
        opened: Opened,
        unanswered: set[TopicPartition],
    ) -> None:
        names = [item.topic_partition for item in share]
        free = [name for name in names if not self.pending.is_busy(name)]  # another log dir may be asked about it, too
        refused = await self._call(directory, free, partial(_make_way, directory, share, self._clock()))
        if refused is None:
            unanswered.update(names)
            return
        for name in names:
            self._directories.made_way(name)
        opened.update(refused)

    def _share_out(self, items: Sequence[AssignedPartition], opened: Opened) -> dict[LogDirectory, _Share]:
        """Return the share of each log dir: the partitions whose log it has, or is to have."""
        by_path = {directory.path: directory for directory in self._directories.opened}
        shares: dict[LogDirectory, _Share] = {}
        new: dict[TopicPartition, AssignedPartition] = {}
        for item in items:
            try:
                found = self._directories.get(item.topic_partition)
                if found is not None and found.failure is not None:
                    raise found.failure
            except PipelineError as error:
                opened[item.topic_partition] = error
                continue
            if found is None:
                new[item.topic_partition] = item
            else:
                shares.setdefault(by_path[found.directory.parent], _Share()).found.append(item)
        avoided = {path for path in by_path if self._patience_s(path) == 0}
        for topic_partition, place in self._directories.place(list(map(self._new_log, new.values())), avoided).items():
            if isinstance(place, StorageError):
                opened[topic_partition] = place
            else:
                shares.setdefault(place, _Share()).new.append(new[topic_partition])
        return shares

    def _new_log(self, item: AssignedPartition) -> NewLog:
        return NewLog(
            topic_partition=item.topic_partition,
            is_new=item.view.is_new,
            topic_id=item.topic_id,
            config=self.log_config(item.settings),
        )

    async def _open_share(
        self, directory: LogDirectory, share: _Share, opened: Opened, left: list[AssignedPartition]
    ) -> None:
        """Open a share, some logs at a time. If the disk stops answering, the items not yet begun go to `left`."""
        while share.items:
            some = share.take(LOGS_PER_THREAD)
            names = [item.topic_partition for item in some.items]
            new = [self._new_log(item) for item in some.new]
            call = partial(_open_logs, directory, some, new, self._clock())
            found = await self._call(directory, names, call, self._keep_late)
            if found is None:
                left += share.items
                return
            opened.update(found)

    def _patience_s(self, log_dir: Path) -> float:
        """Return for how long to wait for an answer of this log dir: not at all while it does not answer others."""
        return 0.0 if self._disks.is_stalled(log_dir) else STALLED_S

    async def _call(
        self,
        directory: LogDirectory,
        names: Sequence[TopicPartition],
        call: Callable[[], _Result],
        take_late: Callable[[_Result], None] = _drop,
    ) -> _Result | None:
        """Run `call` in a thread and return its result.

        None if the log dir does not answer in time. Then `call` goes on, and `take_late` gets its result.
        """
        results: list[_Result] = []

        async def carry_out() -> None:
            async with self._lanes[directory.path]:
                results.append(await self._disks.run(directory.path, call))
            if pending.is_late:
                take_late(results[0])

        patience_s = self._patience_s(directory.path)
        pending = PendingCall(names, directory.path)
        await self.pending.begin(pending, carry_out)
        await self.pending.wait([pending], patience_s)
        if not results:
            logger.warning("log_dir_does_not_answer", log_dir=str(directory.path), partitions=len(names))
        return results[0] if results else None

    # Tails

    async def settle(self, judged: Mapping[TopicPartition, uuid.UUID] = _NONE) -> None:
        """Note on disk that this broker left the ISRs of those of `judged` that it lacks: no later start judges them.

        A later start judges all others. The next call tries again if this one failed, or if a log dir did not answer.
        """
        self._unsettled.update(judged)
        if not self._unsettled and self._has_settled:
            return
        unsettled, outcomes = dict(self._unsettled), list[bool]()
        async with trio.open_nursery() as nursery:
            directories = self._directories.begin_settling()
            for directory in directories:
                nursery.start_soon(self._settle_in, directory, unsettled, outcomes)
        if len(outcomes) == len(directories) and all(outcomes):
            self._has_settled = True
            self._unsettled = dict(self._unsettled.items() - unsettled.items())

    async def _settle_in(
        self, directory: LogDirectory, unsettled: Mapping[TopicPartition, uuid.UUID], outcomes: list[bool]
    ) -> None:
        if self._lanes[directory.path].locked() and self._disks.is_stalled(directory.path):
            return
        found = await self._call(directory, (), partial(_settle_tails, directory, self._directories.ids, unsettled))
        outcomes.append(bool(found))

    # Removing

    async def remove(self, strays: Sequence[HeldLog], is_removable: Callable[[HeldLog], bool]) -> None:
        """Remove the logs for which `is_removable` is true when their turn comes. Waits for no disk for long."""
        by_path: dict[LogDirectory, list[HeldLog]] = {}
        for found in strays:
            for directory in self._directories.opened:
                if directory.path in found.path.parents:
                    by_path.setdefault(directory, []).append(found)
        async with trio.open_nursery() as nursery:
            for directory, share in by_path.items():
                nursery.start_soon(self._remove_from, directory, share, is_removable)

    async def _remove_from(
        self, directory: LogDirectory, strays: Sequence[HeldLog], is_removable: Callable[[HeldLog], bool]
    ) -> None:
        for start in range(0, len(strays), LOGS_PER_REMOVAL):
            some = strays[start : start + LOGS_PER_REMOVAL]
            doomed = [
                found
                for found in some
                if is_removable(found)
                and found.name not in self._removals
                and not self.is_busy(found.name.topic_partition)
            ]
            in_place = {found.name.topic_partition for found in doomed if not found.is_set_aside}
            aside = [found.name for found in doomed if found.is_set_aside]

            async def carry_out(
                names: Sequence[LogName] = [found.name for found in doomed], aside: Sequence[LogName] = aside
            ) -> None:
                remove = partial(_remove, self._directories, directory, names, self._clock())
                try:
                    with trio.CancelScope(shield=True):  # the thread goes on in any case
                        await self._disks.run(directory.path, remove)
                finally:
                    for name in aside:
                        del self._removals[name]

            for name in in_place:
                self._opened_late.pop(name, None)
            pending = PendingCall(in_place, directory.path)
            self._removals.update(dict.fromkeys(aside, pending))
            await self.pending.begin(pending, carry_out)
            await self.pending.wait([pending])
            if pending.is_late:
                return


def _make_way(directory: LogDirectory, items: Sequence[AssignedPartition], now_ms: int) -> Opened:
    """Set aside logs in the places of these, and take back their own; return what failed. Runs in a thread."""
    refused: Opened = {}
    for item in items:
        try:
            if is_displaced(directory, item.log_name):
                make_way(directory, item.topic_partition, item.topic_id, now_ms)
        except PipelineError as error:
            refused[item.topic_partition] = error
    return refused


def _open_logs(directory: LogDirectory, share: _Share, new: Sequence[NewLog], now_ms: int) -> Opened:
    """Return the logs of a share, noted as served, or the errors that prevented it. Runs in a thread."""
    found: Opened = {}
    for item in share.found:
        try:
            found[item.topic_partition] = _find_log(directory, item)
        except PipelineError as error:
            found[item.topic_partition] = error
    found.update(create_each(directory, new, now_ms))
    opened = [log_or_error for log_or_error in found.values() if isinstance(log_or_error, UnifiedLog)]
    try:
        note_served(directory, opened)  # before any of them has a role
    except StorageError as error:
        found.update((opened_log.topic_partition, error) for opened_log in opened)
    for item in share.items:
        log_or_error = found[item.topic_partition]
        if isinstance(log_or_error, UnifiedLog):
            found[item.topic_partition] = _with_promise(log_or_error, item.settings)
    if is_half_free():
        for opened_log in opened:
            with suppress(StorageError):  # appends raise it, too
                hold_end_open(opened_log)
    return found


def _find_log(directory: LogDirectory, item: AssignedPartition) -> UnifiedLog:
    """Return the log of the partition, with its topic id. Raises PipelineError."""
    found = directory.logs.get(item.topic_partition)
    if found is None:
        raise StorageError(str(directory.path / str(item.topic_partition)), "was removed meanwhile")
    if found.failure is not None:
        raise found.failure
    if found.topic_id is None:
        with suppress(DiskFullError):  # the next start asks again
            assign_topic_id(found, item.topic_id)
    return found


def _with_promise(found: UnifiedLog, settings: TopicSettings) -> UnifiedLog | StorageError:
    """Return the log, with its promise of flushes as the settings want it, or the error. Runs in a thread."""
    try:
        with suppress(DiskFullError):  # then no promise is made; a promise that is kept too long costs only flushes
            promise_flushes(found, is_promised=settings.flush_messages == 1)
    except StorageError as error:
        return error
    return found


def _settle_tails(
    directory: LogDirectory, ids: Sequence[uuid.UUID], judged: Mapping[TopicPartition, uuid.UUID]
) -> bool:
    try:
        settle_tails(directory, ids, judged)
    except PipelineError as error:
        logger.error("tails_not_settled", log_dir=str(directory.path), error=str(error))
        return False
    return True


def _remove(directories: LogDirectories, directory: LogDirectory, names: Sequence[LogName], now_ms: int) -> None:
    try:
        directories.delete_from(directory, names, now_ms)
    except PipelineError as error:
        logger.error("logs_not_removed", count=len(names), error=str(error))
