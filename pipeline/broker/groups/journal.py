"""`__consumer_offsets`: written for the groups that this broker coordinates, read when it begins to lead a partition.

Invariants
  A. A group belongs to one partition, by Kafka's hash of its id, and its coordinator is the broker that leads it.
  B. Writes to a partition happen in the order in which they were begun, and their `ended` is called in that order, once
     all replicas in sync have them: what a listener holds is what the log holds and what no election takes back.
     Some are under way at once, none waits for the answer to another; those that wait share the next append.
  C. A write that was begun is carried out and its `ended` called even if whoever asked has gone, or lost patience.
     If the leadership ends first, nobody knows what comes of it: NOT_COORDINATOR, and the next leader's log says it.
  D. Between `on_loaded` and `on_unloaded` of a partition, and only then, `check` lets its groups pass. It is loaded
     when all is committed that the log held as it began to lead, so that nothing is told that could be taken back.

Reading the disk happens in a thread, understanding it in the loop in slices of some milliseconds.
"""

import math
import os
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import mul

import structlog
import trio

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.failures import failure_of
from pipeline.broker.groups.model import JournalListener, LoadedGroup
from pipeline.broker.groups.replay import Replay
from pipeline.broker.replication.partition import Partition
from pipeline.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    MemoryExhaustedError,
    PipelineError,
    RollDueError,
    StorageError,
)
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Clock, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import HEADER_SIZE, BatchHeader, iterate_headers
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec

GROUP_METADATA_TOPIC = "__consumer_offsets"

READ_BYTES = 1 << 20
SLICE_BYTES = 64 << 10
SLICE_ENTRIES = 1000
SLICE_GROUPS = 500
MAX_UNDER_WAY = 8
"""So many batches are under way at once; what comes meanwhile shares the next one."""
RECORD_OVERHEAD_BYTES = 40
"""What a record takes beside its key and value, and more."""

Records = Sequence[tuple[bytes, bytes | None]]

logger = structlog.get_logger()


HASHED_AT_ONCE = 64
_POWERS_OF_31 = [pow(31, exponent, 1 << 32) for exponent in reversed(range(HASHED_AT_ONCE))]


def java_hash(text: str) -> int:
    """`String.hashCode` of Java: of UTF-16 units, 32 bits with a sign."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    value = 0
    for start in range(0, len(units), HASHED_AT_ONCE):
        part = units[start : start + HASHED_AT_ONCE]
        value = (value * pow(31, len(part), 1 << 32) + sum(map(mul, part, _POWERS_OF_31[-len(part) :]))) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def partition_of_group(group_id: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that keeps a group, as Kafka chooses it."""
    number = java_hash(group_id)
    return 0 if number == -(2**31) else abs(number) % partitions


_ERRORS: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


def journal_error(error: PipelineError) -> KafkaError:
    """Why a write to the journal failed, as the clients of a coordinator are told it."""
    if isinstance(error, BatchTooLargeError):
        return KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, str(error))
    code = failure_of(error).code
    return KafkaError(_ERRORS.get(code, code), str(error))


@dataclass(slots=True, eq=False)
class JournalWrite:
    """Records on their way into the journal. `error` holds once `done` is set."""

    records: Records
    timeout_s: float
    ended: Callable[[KafkaError | None], None] | None
    done: trio.Event = field(default_factory=trio.Event)
    error: KafkaError | None = None

    @property
    def size_bytes(self) -> int:
        """What it takes of a batch at most."""
        return sum(len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES for key, value in self.records)

    def answer(self, error: KafkaError | None) -> None:
        """For the journal to call: whoever waits is told so."""
        if not self.done.is_set():
            self.error = error
            self.done.set()

    def end(self, error: KafkaError | None = None) -> None:
        """For the journal to call: this came of it."""
        if self.ended is not None:
            self.ended(error)
        self.answer(error)

    async def wait(self) -> None:
        """Until it is committed, and as durable as the topic's settings say. Raises KafkaError."""
        with trio.move_on_after(self.timeout_s):
            await self.done.wait()
        self.answer(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the replicas in sync did not follow in time"))
        if self.error is not None:
            raise self.error


@dataclass(slots=True)
class _Appended:
    """A batch of writes in the log that is not committed yet, or not flushed."""

    writes: Sequence[JournalWrite]
    end_offset: Offset
    awaits_flush: bool


@dataclass(slots=True, eq=False)
class _Led:
    """A partition of the journal that is led here."""

    partition: Partition
    is_told: bool = False
    """True if listeners hold something of it."""
    is_loaded: bool = False
    is_unreadable: bool = False
    is_appending: bool = False
    is_settling: bool = False
    is_rolling: bool = False
    waiting: deque[JournalWrite] = field(default_factory=deque)
    under_way: deque[_Appended] = field(default_factory=deque)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def may_append(self) -> bool:
        """True if a write waits that need not wait for those under way."""
        return bool(self.waiting) and not self.is_rolling and len(self.under_way) < MAX_UNDER_WAY


class GroupJournal:
    """The partitions of `__consumer_offsets` led here.

    `partitions` is how many the topic will have once it is made; `timeout_ms`: so long anybody waits for a write.
    """

    def __init__(self, view: ClusterView, clock: Clock, *, partitions: int, timeout_ms: int) -> None:
        self._view = view
        self._clock = clock
        self._partitions = partitions
        self._timeout_s = timeout_ms / 1000
        self._listeners: list[JournalListener] = []
        self._led: dict[int, _Led] = {}
        self._loading = trio.Lock()
        self._nursery: trio.Nursery | None = None

    def subscribe(self, listener: JournalListener) -> None:
        """Tell this one too of what is loaded and unloaded, in the order of these calls."""
        self._listeners.append(listener)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry out loads and writes until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _start_soon(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        if self._nursery is not None:  # else the broker stops
            self._nursery.start_soon(task, *arguments)

    def partition_for(self, group_id: str) -> int:
        """The partition that keeps this group."""
        topic = self._view.topic(GROUP_METADATA_TOPIC)
        if topic is not None:
            self._partitions = len(topic.partitions)
        return partition_of_group(group_id, self._partitions)

    def check(self, group_id: str) -> None:
        """Raise KafkaError unless this broker coordinates the group now.

        NOT_COORDINATOR: ask again who does. COORDINATOR_LOAD_IN_PROGRESS: soon. COORDINATOR_NOT_AVAILABLE: its disk.
        """
        self._find(group_id)

    def max_bytes(self, group_id: str) -> int:
        """The most that a batch of the group's partition takes: what is larger cannot be kept. Raises as `check`."""
        return self._find(group_id).partition.settings.max_message_bytes

    @property
    def is_loading(self) -> bool:
        """Whether a partition that is led here is still being read."""
        return any(not led.is_loaded and not led.is_unreadable for led in self._led.values())

    def _find(self, group_id: str) -> _Led:
        led = self._led.get(self.partition_for(group_id))
        if led is None or self._nursery is None:  # the broker stops: another one takes over
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if led.is_unreadable or led.partition.log.failure is not None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, led.partition.problem)
        if not led.is_loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return led

    # Writing

    async def write(self, group_id: str, records: Records) -> None:
        """As `begin`. Returns when it is committed, and as durable as the topic's settings say. Raises KafkaError."""
        await self.begin(group_id, records).wait()

    def begin(
        self, group_id: str, records: Records, *, ended: Callable[[KafkaError | None], None] | None = None
    ) -> JournalWrite:
        """Append keys with their values (None: a tombstone) as part of one batch. Raises KafkaError if it cannot begin.

        Its place among the writes is taken now. `ended` is called with what came of it, just before any waiter hears.
        """
        led = self._find(group_id)
        write = JournalWrite(records, self._timeout_s, ended)
        if not records:
            write.end()
            return write
        led.waiting.append(write)
        if not led.is_appending:
            led.is_appending = True
            self._start_soon(self._append_soon, led)
        return write

    async def _append_soon(self, led: _Led) -> None:
        """What is begun in the same turn of the loop shares an append. Others have their turn between two appends."""
        self._append_waiting(led)
        while led.may_append:
            await trio.lowlevel.checkpoint()
            self._append_waiting(led)
        led.is_appending = False

    def _append_waiting(self, led: _Led) -> None:
        """Append what fits into one batch."""
        if led.may_append:
            self._append(led, _take(led.waiting, led.partition.settings.max_message_bytes))
        if led.under_way and not led.is_settling:
            led.is_settling = True
            self._start_soon(self._settle, led)

    def _append(self, led: _Led, writes: Sequence[JournalWrite]) -> None:
        now_ms = self._clock()
        partition = led.partition
        try:
            partition.check_in_sync()
            builder = BatchBuilder(Codec.NONE, sum(write.size_bytes for write in writes) + HEADER_SIZE)
            for write in writes:
                for key, value in write.records:
                    builder.append(key, value, (), now_ms)
            info = partition.append(memoryview(builder.build()), keep_offsets=False, now_ms=now_ms)
        except RollDueError as due:
            led.waiting.extendleft(reversed(writes))
            led.is_rolling = True
            self._start_soon(self._roll, led, due, now_ms)
            return
        except PipelineError as reason:
            _end(writes, _told(partition, reason))
            return
        awaits_flush = partition.awaits_flush(info)
        if awaits_flush or partition.has_followers or led.under_way:
            led.under_way.append(_Appended(writes, Offset(info.last_offset + 1), awaits_flush))
        else:
            _end(writes, None)

    async def _roll(self, led: _Led, due: RollDueError, now_ms: int) -> None:
        """Append what waits once the log has the segment for it."""
        try:
            await led.partition.roll(due, now_ms)
        except PipelineError as reason:
            if led.waiting:
                failed = _take(led.waiting, led.partition.settings.max_message_bytes)
                _end(failed, _told(led.partition, reason))
        led.is_rolling = False
        if not led.is_appending:
            led.is_appending = True
            await self._append_soon(led)

    async def _settle(self, led: _Led) -> None:
        """End what is under way in its order, each when it is committed."""
        while led.under_way:
            first = led.under_way[0]
            error = await _outcome(led.partition, first)
            if not led.under_way or led.under_way[0] is not first:
                break
            led.under_way.popleft()
            _end(first.writes, error)
            self._append_waiting(led)
        led.is_settling = False

    # Leading

    def opened(self, partition: Partition) -> None:
        """A partition of the journal is led here from now on."""
        number = partition.topic_partition.partition
        self.closed(partition.topic_partition)
        led = self._led[number] = _Led(partition)
        end_offset = partition.log.log_end_offset
        if partition.log.log_start_offset == end_offset:
            self._tell_loaded(number, led, {})
            led.is_loaded = True
        else:
            self._start_soon(self._load, number, led, end_offset)

    def closed(self, topic_partition: TopicPartition) -> None:
        """It is led here no more."""
        led = self._led.pop(topic_partition.partition, None)
        if led is None:
            return
        led.scope.cancel()
        given_up = [*(write for batch in led.under_way for write in batch.writes), *led.waiting]
        led.under_way.clear()
        led.waiting.clear()
        _end(given_up, KafkaError(ErrorCode.NOT_COORDINATOR))
        if led.is_told:
            for listener in reversed(self._listeners):
                listener.on_unloaded(topic_partition.partition)

    async def _load(self, number: int, led: _Led, end_offset: Offset) -> None:
        replay = Replay()
        started = trio.current_time()
        with led.scope:
            try:
                async with self._loading:
                    await _read(led.partition.log, end_offset, replay)
                    await _open_entries(replay)
                await _until_committed(led.partition, end_offset)
            except StorageError as error:
                led.is_unreadable = True
                logger.error("group_journal_unreadable", partition=number, error=str(error))
                return
            await self._tell_all_loaded(number, led, replay)
            led.is_loaded = True
            logger.info(
                "group_journal_loaded",
                partition=number,
                keys=len(replay.newest),
                seconds=round(trio.current_time() - started, 3),
            )

    async def _tell_all_loaded(self, number: int, led: _Led, replay: Replay) -> None:
        """In slices: taking over very many groups is to hold up nobody."""
        if replay.problems.count:
            logger.error(
                "group_journal_damaged", partition=number, passed_over=replay.problems.count, first=replay.problems.told
            )
        groups = iter(replay.groups().items())
        self._tell_loaded(number, led, dict(islice(groups, SLICE_GROUPS)))
        while some := dict(islice(groups, SLICE_GROUPS)):
            await trio.lowlevel.checkpoint()
            self._tell_loaded(number, led, some)

    def _tell_loaded(self, number: int, led: _Led, groups: Mapping[str, LoadedGroup]) -> None:
        led.is_told = True
        for listener in self._listeners:
            listener.on_loaded(number, groups)


def _take(waiting: deque[JournalWrite], max_bytes: int) -> list[JournalWrite]:
    """The next writes that fit into one batch, at least one."""
    taken = [waiting.popleft()]
    room = max_bytes - HEADER_SIZE - taken[0].size_bytes
    while waiting and waiting[0].size_bytes <= room:
        room -= waiting[0].size_bytes
        taken.append(waiting.popleft())
    return taken


def _end(writes: Sequence[JournalWrite], error: KafkaError | None) -> None:
    for write in writes:
        write.end(error)


def _told(partition: Partition, reason: PipelineError) -> KafkaError:
    logger.error("group_journal_not_written", topic_partition=str(partition.topic_partition), error=str(reason))
    return journal_error(reason)


async def _outcome(partition: Partition, appended: _Appended) -> KafkaError | None:
    """What becomes of it. Whoever waits hears already that too few are in sync; it may be committed all the same."""
    try:
        if appended.awaits_flush:
            await partition.flush_up_to(appended.end_offset)
        while True:
            try:
                await partition.wait_committed(appended.end_offset, math.inf)
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                    raise
                for write in appended.writes:
                    write.answer(journal_error(error))
            else:
                return None
    except PipelineError as reason:
        return _told(partition, reason)


async def _until_committed(partition: Partition, end_offset: Offset) -> None:
    """Until no election can take back what lies before there; never, if the leadership ends first."""
    while True:
        try:
            await partition.wait_committed(end_offset, math.inf)
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                await trio.sleep_forever()
        else:
            return


async def _read(opened: UnifiedLog, end_offset: Offset, replay: Replay) -> None:
    """Replay all that the log holds before there. Raises StorageError."""
    offset = opened.log_start_offset
    skipped = 1
    while offset < end_offset:
        since_checkpoint = 0
        start_offset = offset
        try:
            chunk = await trio.to_thread.run_sync(
                partial(_read_chunk, opened, offset, end_offset), abandon_on_cancel=True
            )
            if not chunk:
                return
            for position, header in iterate_headers(chunk):
                if header.next_offset > offset:
                    await _replay(replay, chunk, position, header)
                    offset = Offset(header.next_offset)
                    skipped = 1
                since_checkpoint += header.size_bytes
                if since_checkpoint >= SLICE_BYTES:
                    since_checkpoint = 0
                    await trio.lowlevel.checkpoint()
        except CorruptBatchError as error:
            replay.problems.add(f"from offset {offset} on: {error}")
            offset = Offset(offset + skipped)
            skipped *= 2
        else:
            if offset == start_offset:
                return


async def _replay(replay: Replay, chunk: bytes, position: int, header: BatchHeader) -> None:
    """Take in one batch; a compressed one may hold much, and is opened by a thread when there is memory for it."""
    if not header.is_compressed:
        replay.batch(chunk, position, header)
        return None
    while True:
        try:
            return await trio.to_thread.run_sync(replay.batch, chunk, position, header, abandon_on_cancel=True)
        except MemoryExhaustedError as error:
            logger.warning("group_journal_waits", base_offset=header.base_offset, error=str(error))


def _read_chunk(opened: UnifiedLog, offset: Offset, end_offset: Offset) -> bytes:
    region = opened.read(offset, READ_BYTES, end_offset).region
    try:
        return os.pread(region.file.fileno(), region.size, region.position)
    except OSError as error:
        raise StorageError(str(opened.directory), str(error)) from error


async def _open_entries(replay: Replay) -> None:
    for count, (key, value) in enumerate(replay.newest.items(), 1):
        replay.entry(key, value)
        if count % SLICE_ENTRIES == 0:
            await trio.lowlevel.checkpoint()
