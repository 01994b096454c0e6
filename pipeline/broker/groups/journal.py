"""`__consumer_offsets`, written for the groups coordinated here, and read when this broker begins to lead a partition.

Invariants
  A. A group belongs to one partition (`partition_of_group`), and its coordinator is the broker that leads it.
  B. `check` passes the groups of a partition only between `on_loaded` and `on_unloaded`. A partition is loaded once all
     records are committed that its log held at the start, so no election removes records that a listener holds.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice

import trio

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.groups import journal_reader
from pipeline.broker.groups.journal_writer import JournalWrite, JournalWriter
from pipeline.broker.groups.model import JournalListener, LoadedGroup, Records
from pipeline.broker.groups.records import partition_of_group
from pipeline.broker.groups.replay import Replay
from pipeline.broker.replication.partition import Partition
from pipeline.diagnostics import get_logger
from pipeline.errors import StorageError
from pipeline.model import Clock, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

GROUP_METADATA_TOPIC = "__consumer_offsets"

SLICE_GROUPS = 500
"""Groups that are handed to the listeners before other tasks have their turn."""

logger = get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Led:
    """A partition of the journal led here."""

    partition: Partition
    writer: JournalWriter
    is_announced: bool = False
    """True if listeners hold some of its groups."""
    is_loaded: bool = False
    is_unreadable: bool = False
    loading: trio.CancelScope = field(default_factory=trio.CancelScope)


class GroupJournal:
    """The partitions of `__consumer_offsets` led here. `timeout_ms` bounds a client's wait for a write."""

    def __init__(self, view: ClusterView, clock: Clock, *, partitions: int, timeout_ms: int) -> None:
        self._view = view
        self._clock = clock
        self._partitions = partitions  # as configured until the topic is created
        self._timeout_s = timeout_ms / 1000
        self._listeners: list[JournalListener] = []
        self._led: dict[int, _Led] = {}
        self._one_load = trio.Lock()  # partitions are read one after the other, so that the first is ready soon
        self._nursery: trio.Nursery | None = None

    def subscribe(self, listener: JournalListener) -> None:
        """Notify `listener` of partitions that are loaded, in the order of subscription, and unloaded, in reverse."""
        self._listeners.append(listener)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run loads and writes until cancelled."""
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
        """Return the partition that keeps this group."""
        topic = self._view.topic(GROUP_METADATA_TOPIC)
        if topic is not None:
            self._partitions = len(topic.partitions)
        return partition_of_group(group_id, self._partitions)

    def check(self, group_id: str) -> None:
        """Raise KafkaError unless this broker coordinates the group now.

        NOT_COORDINATOR: look for the coordinator. COORDINATOR_LOAD_IN_PROGRESS: try again soon.
        COORDINATOR_NOT_AVAILABLE: the disk of the coordinator has failed.
        """
        self._find(group_id)

    def max_bytes(self, group_id: str) -> int:
        """Return the largest batch in bytes that the group's partition accepts. Raises as `check`."""
        return self._find(group_id).partition.settings.max_message_bytes

    @property
    def is_loading(self) -> bool:
        """True if a partition that is led here is still being read."""
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

    # Writes

    async def write(self, group_id: str, records: Records) -> None:
        """Write records, and wait as `JournalWrite.wait` does. Raises KafkaError."""
        await self.begin(group_id, records).wait()

    def begin(
        self, group_id: str, records: Records, *, ended: Callable[[KafkaError | None], None] | None = None
    ) -> JournalWrite:
        """Begin to append records, all in one batch. The order of writes is that of these calls. Raises KafkaError.

        `ended` is called with the outcome, just before waiting tasks go on.
        """
        led = self._find(group_id)
        write = JournalWrite(records, self._timeout_s, ended)
        if records:
            led.writer.begin(write)
        else:
            write.finish()
        return write

    # Leaderships

    def leadership_began(self, partition: Partition) -> None:
        """Load a partition that is led here from now on."""
        number = partition.topic_partition.partition
        self.leadership_ended(partition.topic_partition)  # led again in a later epoch
        led = self._led[number] = _Led(partition, JournalWriter(partition, self._clock, self._start_soon))
        end_offset = partition.log.log_end_offset
        if partition.log.log_start_offset == end_offset:
            self._announce(number, led, {})
            led.is_loaded = True
        else:
            self._start_soon(self._load, number, led, end_offset)

    def leadership_ended(self, topic_partition: TopicPartition) -> None:
        """Unload a partition that is not led here any more."""
        led = self._led.pop(topic_partition.partition, None)
        if led is None:
            return
        led.loading.cancel()
        led.writer.close()
        if led.is_announced:
            for listener in reversed(self._listeners):
                listener.on_unloaded(topic_partition.partition)

    async def _load(self, number: int, led: _Led, end_offset: Offset) -> None:
        started = trio.current_time()
        with led.loading:
            try:
                async with self._one_load:
                    replay = await journal_reader.read(led.partition.log, end_offset)
                await journal_reader.wait_committed(led.partition, end_offset)
            except StorageError as error:
                led.is_unreadable = True
                logger.error("group_journal_unreadable", partition=number, error=str(error))
                return
            await self._announce_all(number, led, replay)
            led.is_loaded = True
            logger.info(
                "group_journal_loaded",
                partition=number,
                keys=len(replay.newest),
                seconds=round(trio.current_time() - started, 3),
            )

    async def _announce_all(self, number: int, led: _Led, replay: Replay) -> None:
        """Hand all groups to the listeners in slices: there may be very many."""
        problems = replay.problems
        if problems.count:
            logger.error("group_journal_damaged", partition=number, passed_over=problems.count, first=problems.first)
        groups = iter(replay.groups().items())
        self._announce(number, led, dict(islice(groups, SLICE_GROUPS)))
        while some := dict(islice(groups, SLICE_GROUPS)):
            await trio.lowlevel.checkpoint()
            self._announce(number, led, some)

    def _announce(self, number: int, led: _Led, groups: Mapping[str, LoadedGroup]) -> None:
        led.is_announced = True
        for listener in self._listeners:
            listener.on_loaded(number, groups)
