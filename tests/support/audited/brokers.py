"""Clusters of brokers that are logs and a counter: real logs, checkpoints and counters, without network and ZooKeeper.

The high watermark of a partition is the lowest log end offset of its replicas that are alive. Followers copy from the
leader whenever it appends.
"""

import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.audit.counting.broker_counter import BrokerCounter, BrokerLife
from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.audit.events.report import CountReport
from pipeline.log.config import LogConfig
from pipeline.log.files import DiskFiles
from pipeline.log.loader import NewLog, create_log, load_log
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import LeaderEpoch, Offset, TopicPartition
from pipeline.records.batch import iterate_headers, validate_for_append

WINDOW_MS = 600_000
MAX_BYTES = 1 << 24

Batches = list[bytearray]
Clock = Callable[[], int]


@dataclass(eq=False)
class Replica:
    """A replica of a partition, as a broker shows it to its observer."""

    log: UnifiedLog
    is_leader: bool
    leader_epoch: LeaderEpoch
    high_watermark: Offset

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition


@dataclass(eq=False)
class CountedBroker:
    """A broker. While it is down it has neither replicas nor a counter."""

    id: int
    cluster: str
    directory: Path
    clock: Clock
    replicas: dict[TopicPartition, Replica] = field(default_factory=dict)
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    """Log start offsets, as a broker has them in a checkpoint."""
    counter: BrokerCounter | None = None
    skew_ms: int = 0

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        checkpoints = PartitionCheckpoints([self.directory], DiskFiles())
        life = BrokerLife(
            broker_id=self.id, host=f"{self.cluster}-{self.id}", started_ms=self.now_ms(), interval_ms=1_000
        )
        self.counter = BrokerCounter(self.cluster, WINDOW_MS, checkpoints, self.now_ms, life)

    def now_ms(self) -> int:
        return self.clock() + self.skew_ms

    @property
    def is_alive(self) -> bool:
        return self.counter is not None


@dataclass(eq=False)
class CountedCluster:
    """Brokers, the first of which leads every partition at first. Topics are created with replicas on all brokers."""

    name: str
    directory: Path
    clock: Clock
    size: int = 2
    created: int = 0
    """Topics that were created so far."""
    topic_ids: dict[str, uuid.UUID] = field(default_factory=dict)
    brokers: list[CountedBroker] = field(default_factory=list)
    leaders: dict[TopicPartition, int] = field(default_factory=dict)
    """Index of the broker that leads, by partition."""
    epochs: dict[TopicPartition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number in range(self.size):
            broker = CountedBroker(number + 1, self.name, self.directory / f"{self.name}-{number + 1}", self.clock)
            broker.start()
            self.brokers.append(broker)

    # Topics

    def create(self, topic: str, partitions: int) -> None:
        self.created += 1
        self.topic_ids[topic] = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.name} {topic} {self.created}")
        self.add_partitions(topic, range(partitions))

    def add_partitions(self, topic: str, numbers: Iterable[int]) -> None:
        topic_id = self.topic_ids[topic]
        for number in numbers:
            partition = TopicPartition(topic, number)
            self.leaders[partition], self.epochs[partition] = 0, 0
            for index, broker in enumerate(self.brokers):
                new = NewLog(topic_partition=partition, topic_id=topic_id, config=None)
                log = create_log(DiskFiles(), broker.directory, new, LogConfig(), now_ms=self.clock())
                self._open(broker, log, is_leader=index == 0)

    def recreate(self, topic: str) -> None:
        """Delete a topic with all its records, and create another one of the same name."""
        gone = [partition for partition in self.leaders if partition.topic == topic]
        for broker in self.brokers:
            assert broker.counter is not None
            for partition in gone:
                broker.counter.removed(partition)
                del broker.replicas[partition]
                shutil.rmtree(broker.directory / str(partition))
        self.create(topic, len(gone))

    def _open(self, broker: CountedBroker, log: UnifiedLog, *, is_leader: bool) -> None:
        epoch = LeaderEpoch(self.epochs[log.topic_partition])
        replica = broker.replicas[log.topic_partition] = Replica(log, is_leader, epoch, Offset(0))
        if is_leader:
            log.begin_epoch(epoch)
        replica.high_watermark = self._committed(log.topic_partition)
        assert broker.counter is not None
        broker.counter.loaded(replica)

    # Records

    def append(self, partition: TopicPartition, batches: Sequence[bytes | bytearray], *, keeps_offsets: bool) -> None:
        """Append batches at the leader, and have the followers copy them."""
        leader = self._leader(partition)
        for batch in batches:
            buffer = bytearray(batch)
            headers = validate_for_append(buffer, max_batch_bytes=MAX_BYTES, keep_offsets=keeps_offsets)
            replica = leader.replicas[partition]
            append = replica.log.append_keeping_offsets if keeps_offsets else replica.log.append
            info = append(buffer, headers, replica.leader_epoch, self.clock())
            assert leader.counter is not None
            leader.counter.appended(partition, info.headers, memoryview(buffer), self.clock())
        self.replicate(partition)

    def replicate(self, partition: TopicPartition) -> None:
        """Have all followers that are alive copy what they lack, and advance the high watermark."""
        leader = self._leader(partition).replicas[partition].log
        for broker in self.brokers:
            replica = broker.replicas.get(partition)
            if broker.counter is None or replica is None or replica.is_leader:
                continue
            for batch in _batches(leader, replica.log.log_end_offset):
                headers = [header for _, header in iterate_headers(batch)]
                replica.log.append_copied(batch, headers, self.clock())
                broker.counter.appended(partition, headers, memoryview(batch), self.clock())
        for broker in self.brokers:
            if partition in broker.replicas:
                broker.replicas[partition].high_watermark = self._committed(partition)

    def read(self, partition: TopicPartition, offset: int = 0) -> Batches:
        """Return the committed batches from the one with this offset on."""
        replica = self._leader(partition).replicas[partition]
        start = max(offset, replica.log.log_start_offset)
        return list(_batches(replica.log, Offset(start)))

    def end_offset(self, partition: TopicPartition) -> int:
        return self._leader(partition).replicas[partition].log.log_end_offset

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        """Do what retention and DeleteRecords do."""
        for broker in self.brokers:
            if partition in broker.replicas:
                broker.replicas[partition].log.delete_records(Offset(before))

    # Faults

    def kill(self, index: int = 0) -> None:
        """Kill a broker; the process's memory is gone, its files stay."""
        broker = self.brokers[index]
        for partition, replica in broker.replicas.items():
            replica.log.flush()
            broker.log_starts[partition] = replica.log.log_start_offset
        broker.counter, broker.replicas = None, {}

    def start(self, index: int = 0) -> None:
        """Start a broker that was killed; its logs and checkpoints are read from the disk."""
        broker = self.brokers[index]
        broker.start()
        for partition in self.leaders:
            directory = broker.directory / str(partition)
            log = load_log(
                DiskFiles(),
                directory,
                partition,
                LogConfig(),
                recovery_point=Offset(0),
                clean=False,
                now_ms=self.clock(),
                log_start_offset=broker.log_starts.get(partition, 0),
            )
            self._open(broker, log, is_leader=self.leaders[partition] == index)
            self.replicate(partition)

    def restart(self) -> None:
        """Kill the first broker and start it again."""
        self.kill()
        self.start()

    def lead(self, partition: TopicPartition, index: int) -> None:
        """Elect a leader; a leader of before that is alive follows it, and is truncated to its end."""
        self.leaders[partition] = index
        self.epochs[partition] += 1
        epoch = LeaderEpoch(self.epochs[partition])
        for number, broker in enumerate(self.brokers):
            if partition in broker.replicas:
                replica = broker.replicas[partition]
                replica.is_leader, replica.leader_epoch = number == index, epoch
        self.brokers[index].replicas[partition].log.begin_epoch(epoch)
        self.replicate(partition)

    def edit(self, partition: TopicPartition, forge: Callable[[Batches], Batches], index: int = 0) -> None:
        """Stop a broker, edit a segment file of a partition, and start the broker again."""
        self.kill(index)
        (segment,) = (self.brokers[index].directory / str(partition)).glob("*.log")
        data = segment.read_bytes()
        batches = [bytearray(data[at : at + header.size_bytes]) for at, header in iterate_headers(data)]
        segment.write_bytes(b"".join(forge(batches)))
        self.start(index)

    # Reports

    def reports(self) -> Iterator[CountReport]:
        """Yield what the counters report now; what is yielded counts as published."""
        for broker in self.brokers:
            if broker.counter is not None:
                found = broker.counter.take_reports()
                yield from found
                broker.counter.published(found)

    def partition_counts(self) -> Mapping[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for partition in self.leaders:
            key = self.name, partition.topic
            counts[key] = counts.get(key, 0) + 1
        return counts

    def _leader(self, partition: TopicPartition) -> CountedBroker:
        broker = self.brokers[self.leaders[partition]]
        assert broker.is_alive, f"the leader of {partition} is down"
        return broker

    def _committed(self, partition: TopicPartition) -> Offset:
        ends = [
            b.replicas[partition].log.log_end_offset for b in self.brokers if b.is_alive and partition in b.replicas
        ]
        return min(ends, default=Offset(0))


def _batches(log: UnifiedLog, offset: Offset) -> Iterator[bytearray]:
    for header in list(log.headers(offset)):
        yield bytearray(log.snapshot.read_batch(header))
