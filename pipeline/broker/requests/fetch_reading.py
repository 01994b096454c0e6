"""Reading of the partitions of one Fetch request, within the limits of its answer."""

import uuid
from collections.abc import Sequence
from functools import partial

import trio

from pipeline.broker.cluster.view import TopicView
from pipeline.broker.failures import failure_of
from pipeline.broker.replication.partition import Partition
from pipeline.broker.replication.replication_quota import is_throttled
from pipeline.broker.replication.waiters import FetchWaiter, Waiter
from pipeline.broker.requests.context import BrokerContext
from pipeline.broker.requests.current_leaders import MOVED, find_current_leader
from pipeline.broker.runtime.disk_threads import STALLED_S
from pipeline.errors import OffsetOutOfRangeError, PipelineError, SegmentClosedError
from pipeline.log.held_files import open_for_read
from pipeline.log.log_snapshot import LogSlice, SkipBudget
from pipeline.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import (
    FIRST_VERSION_OF_REPLICA_STATE,
    FIRST_VERSION_OF_TOPIC_IDS,
    FIRST_VERSION_OF_ZSTD,
    READ_COMMITTED,
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

_NO_LEADER = LeaderIdAndEpoch()


class FetchReading:
    """Answer in the making: the bytes that it may still hold, and the data read from each partition."""

    __slots__ = (
        "_broker",
        "_is_broker",
        "_min_bytes",
        "_notes_follower",
        "_remaining_bytes",
        "_replica",
        "_replica_epoch",
        "_skips",
        "_version",
        "has_failure",
        "has_more",
        "is_committed",
        "is_limited",
        "leaders",
        "openings",
        "read_bytes",
        "request",
        "served",
        "throttled_bytes",
    )

    def __init__(self, broker: BrokerContext, request: FetchRequest, version: int, *, is_again: bool = False) -> None:
        self.request = request
        self._broker = broker
        self._version = version
        self._min_bytes = request.min_bytes
        self._skips = SkipBudget()
        self._replica = BrokerId(fetching_replica(request, version))
        self._notes_follower = self._replica >= 0 and not is_again
        self._replica_epoch = request.replica_state.replica_epoch
        self._is_broker = broker.is_other_broker(self._replica, self._replica_epoch)
        self.is_committed = request.isolation_level == READ_COMMITTED and self._replica < 0
        self._remaining_bytes = min(request.max_bytes, broker.settings.static.fetch_max_bytes)
        self.read_bytes = 0
        self.throttled_bytes = 0
        """Bytes that count for the replication throttle."""
        self.has_failure = False
        self.is_limited = False
        """True if there are more records than the answer may hold."""
        self.has_more = False
        """True if there are records behind the position of the last read."""
        self.served: list[tuple[Partition, LogSlice | None]] = []
        """Partitions without failure, and the records read of each."""
        self.leaders: dict[int, NodeEndpoint] = {}
        """Brokers that the answer names as leaders of partitions that are led elsewhere (KIP-951)."""
        self.openings: list[trio.Event] = []
        """Events of file openings that reads lacked."""

    def again(self) -> "FetchReading":
        """Return another reading for the same request; only the first one notes the positions of a follower."""
        return FetchReading(self._broker, self.request, self._version, is_again=True)

    @property
    def is_complete(self) -> bool:
        """True if there is nothing to wait for."""
        return self.read_bytes >= self._min_bytes or self.has_failure or self.is_limited

    def waiter(self) -> FetchWaiter:
        """Return a waiter that is woken when the answer could be complete.

        Any append wakes a read_committed reader, since it may end a transaction.
        """
        return FetchWaiter(1 if self.is_committed else self._min_bytes - self.read_bytes)

    def find_topic(self, topic: str, topic_id: uuid.UUID) -> TopicView | None:
        """Return the requested topic; call once for all its partitions."""
        view = self._broker.view
        return view.topic_of_id(topic_id) if self._version >= FIRST_VERSION_OF_TOPIC_IDS else view.topic(topic)

    def read(self, topic: TopicView | None, name: str, asked: FetchPartition) -> PartitionData:
        """Return the data of one partition."""
        aborted: Sequence[AbortedTransaction] | None = () if self.is_committed else None
        try:
            partition = self._find(topic, name, asked)
            end_offset = self._end_of(partition)
            if asked.fetch_offset == end_offset and self._replica < 0 and partition.log.failure is None:
                return self._nothing_behind(partition, aborted)
            counts_for_rate = self._replica >= 0 and self._is_throttled(partition)
            found = None
            if not (counts_for_rate and self._is_pausing()):
                found, aborted = self._read(partition, asked, end_offset, aborted)
            if self._notes_follower:
                self._note_follower(partition, asked)
        except PipelineError as error:
            self.has_failure = True
            code = failure_of(error).code
            return PartitionData(
                partition_index=asked.partition,
                error_code=code,
                current_leader=self._name_leader(topic, asked.partition) if code in MOVED else _NO_LEADER,
                high_watermark=-1,
                log_start_offset=error.log_start_offset if isinstance(error, OffsetOutOfRangeError) else -1,
                aborted_transactions=aborted,
                records=b"",
            )
        self.has_more = asked.fetch_offset < end_offset or (
            self._replica >= 0 and not partition.leading().state.knows(self._replica, Offset(asked.fetch_offset))
        )
        if found is not None:
            self.read_bytes += found.region.size
            self._remaining_bytes -= found.region.size
            self.throttled_bytes += found.region.size if counts_for_rate else 0
            self.is_limited = self.is_limited or found.base_offset + found.offset_count < end_offset
        elif self.read_bytes and asked.fetch_offset < end_offset:
            self.is_limited = True
        self.served.append((partition, found))
        return PartitionData(
            partition_index=asked.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=aborted,
            records=b"" if found is None else found.region,
        )

    def _name_leader(self, topic: TopicView | None, index: int) -> LeaderIdAndEpoch:
        """Return the present leader of a partition to a consumer; followers read it from ZooKeeper."""
        found = None
        if self._replica < 0:
            found = find_current_leader(self._broker.view, self._broker.settings.static.broker_id, topic, index)
        if found is None:
            return _NO_LEADER
        address, node = found.broker.address, found.broker.id
        self.leaders[node] = NodeEndpoint(node_id=node, host=address.host, port=address.port, rack=found.broker.rack)
        return LeaderIdAndEpoch(leader_id=node, leader_epoch=found.epoch)

    def _read(
        self,
        partition: Partition,
        asked: FetchPartition,
        end_offset: Offset,
        aborted: Sequence[AbortedTransaction] | None,
    ) -> tuple[LogSlice | None, Sequence[AbortedTransaction] | None]:
        """Return the records and their aborted transactions; no records if a file must be opened first."""
        offset = Offset(asked.fetch_offset)
        max_bytes = min(asked.partition_max_bytes, self._remaining_bytes)
        waits = self._broker.fetch.openings.take(partition)
        try:
            found = partition.read(
                offset,
                max_bytes,
                must_progress=self.read_bytes == 0,
                up_to=end_offset,
                skips=self._skips,
                waits=waits,
            )
            if self.is_committed and found is not None:
                aborted = _aborted(partition, offset, found.upper_bound(waits=waits))
        except SegmentClosedError:
            open_files = partial(
                open_for_read, partition.log, offset, max_bytes, end_offset, is_committed=self.is_committed
            )
            opening = self._broker.fetch.openings.begin(partition, open_files)
            if opening is not None:
                self.openings.append(opening)
            return None, aborted
        return found, aborted

    async def wait_for_files(self) -> None:
        """Return when the missing files are open, or after STALLED_S."""
        with trio.move_on_after(STALLED_S):
            for opening in self.openings:
                await opening.wait()

    def _nothing_behind(self, partition: Partition, aborted: Sequence[AbortedTransaction] | None) -> PartitionData:
        """Return the data for a consumer that has read all records.

        The partition keeps its last answer: clients without sessions poll hundreds of partitions at a time.
        """
        self.has_more = False
        self.served.append((partition, None))
        high_watermark, stable = partition.high_watermark, partition.last_stable_offset
        log_start_offset, known = partition.log.log_start_offset, partition.nothing_new
        if (
            known is None
            or known.high_watermark != high_watermark
            or known.last_stable_offset != stable
            or known.log_start_offset != log_start_offset
            or known.aborted_transactions != aborted
        ):
            known = partition.nothing_new = PartitionData(
                partition_index=partition.topic_partition.partition,
                high_watermark=high_watermark,
                last_stable_offset=stable,
                log_start_offset=log_start_offset,
                aborted_transactions=aborted,
                records=b"",
            )
        return known

    def _is_throttled(self, partition: Partition) -> bool:
        """True if the follower is not in the ISR and this leader's replica is throttled (KIP-73)."""
        replicas, own = partition.settings.leader_throttled_replicas, self._broker.settings.static.broker_id
        index = partition.topic_partition.partition
        return bool(replicas) and self._replica not in partition.isr and is_throttled(replicas, index, own)

    def _is_pausing(self) -> bool:
        return self._broker.fetch.throttle.pause_s(trio.current_time()) > 0

    def _end_of(self, partition: Partition) -> Offset:
        """Return the end of the records that may be read; a replica id without its broker's epoch is a consumer."""
        if self._replica >= 0:
            return partition.log.log_end_offset if self._is_broker else partition.high_watermark
        return partition.last_stable_offset if self.is_committed else partition.high_watermark

    def _note_follower(self, partition: Partition, asked: FetchPartition) -> None:
        partition.leading().follower_fetched(
            self._replica,
            Offset(asked.fetch_offset),
            Offset(asked.log_start_offset),
            broker_epoch=self._replica_epoch,
            has_epoch=asked.current_leader_epoch >= 0,
        )

    def watch(self, partition: Partition, waiter: Waiter) -> None:
        """Have the waiter notified of the events that this request waits for."""
        if self._replica >= 0:
            partition.follower_waiters[waiter] = None
        else:
            partition.waiters[waiter] = None

    def keep(self, partition: Partition) -> None:
        """Count the partition as served: it has no news since it was read, and gave no records."""
        self.served.append((partition, None))

    def _find(self, topic: TopicView | None, name: str, asked: FetchPartition) -> Partition:
        epoch = LeaderEpoch(asked.current_leader_epoch)
        if self._version >= FIRST_VERSION_OF_TOPIC_IDS:
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = topic.name
        partition = self._broker.find_partition_of(topic, TopicPartition(name, asked.partition), epoch)
        if self._version < FIRST_VERSION_OF_ZSTD and partition.settings.compression_type == "zstd":
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        return partition

    def count(self, told: int, failed: int) -> None:
        """Count an answer that reports `told` partitions, `failed` of them with errors."""
        counts = self._broker.fetch
        counts.partitions += told
        counts.failed_partitions += failed
        if self.throttled_bytes:
            counts.throttle.count(self.throttled_bytes, trio.current_time())
        for partition, found in self.served:
            if found is not None and self._replica >= 0:
                counts.replication_bytes_out += found.region.size
            elif found is not None:
                partition.bytes_out += found.region.size
                partition.messages_out += found.offset_count


def fetching_replica(request: FetchRequest, version: int) -> int:
    """Return the replica id that the request names; below 0 for a consumer."""
    return request.replica_id if version < FIRST_VERSION_OF_REPLICA_STATE else request.replica_state.replica_id


def _aborted(partition: Partition, offset: Offset, up_to: Offset) -> Sequence[AbortedTransaction]:
    return [
        AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
        for aborted in partition.log.aborted_transactions(offset, up_to, waits=False)
    ]
