"""Groups as metrics: their states under the names that Kafka's JMX exporter gives to them, their lag under those that
Kafka exporters use.

Reading a time asks the disk, so only so many are read each time that metrics are asked for; the others are told later.
The lag of a partition is told where the group is coordinated, if the partition is led there too; its committed offset
always. In seconds it is the age of the first batch that the group has not read to its end.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from pipeline.broker.groups.coordinator import Coordinator
from pipeline.broker.groups.offset_keeper import OffsetKeeper
from pipeline.broker.partition import Partition
from pipeline.errors import PipelineError
from pipeline.model import Clock, Offset, TopicPartition
from pipeline.net.exposition import with_samples

_STATES = "kafka_coordinator_group_groupmetadatamanager_numgroups"
_GROUPS = "kafka_consumergroup"
_LABELS = ("consumergroup", "topic", "partition")
MAX_TIMES_READ = 200


class GroupMetrics:
    """Reads the groups coordinated here."""

    def __init__(
        self,
        coordinator: Coordinator,
        offsets: OffsetKeeper,
        partitions: Mapping[TopicPartition, Partition],
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._offsets = offsets
        self._partitions = partitions
        self._clock = clock
        self._times: dict[tuple[TopicPartition, Offset], int] = {}

    def collect(self) -> Iterator[Metric]:
        """All metrics, read now."""
        counts = self._coordinator.count_by_state()
        yield GaugeMetricFamily(_STATES, "Groups coordinated here.", value=sum(counts.values()))
        for state, count in counts.items():
            yield GaugeMetricFamily(f"{_STATES}{state.lower()}", f"Those that are {state}.", value=count)
        yield CounterMetricFamily(
            "kafka_server_group_coordinator_metrics_group_completed_rebalance",
            "Rebalances that came to an end.",
            value=self._coordinator.rebalances,
        )
        for name, value, text in (
            ("waiting_requests", self._coordinator.waiting_requests, "JoinGroup and SyncGroup requests that wait."),
            ("writes_under_way", self._coordinator.writes_under_way, "Changes of groups that are being written."),
            ("offsets_under_way", self._offsets.under_way, "Offsets of which a change is being written."),
            ("held_bytes", self._coordinator.held_bytes, "Memory that members of groups take, about."),
        ):
            yield GaugeMetricFamily(f"pipeline_groups_{name}", text, value=value)
        yield from self._collect_lags()

    def _collect_lags(self) -> Iterator[Metric]:
        for name, text, samples in (
            ("current_offset", "Next offset to read.", self._current_offsets),
            ("lag", "Records not read yet.", self._lags),
            ("lag_seconds", "Age of the oldest of them.", self._lags_seconds),
        ):
            name = f"{_GROUPS}_{name}"
            yield with_samples(GaugeMetricFamily(name, text, labels=_LABELS), samples(name))

    def _current_offsets(self, name: str) -> Iterator[Sample]:
        for group_id, topic_partition, offset in self._offsets.committed():
            yield _sample(name, group_id, topic_partition, offset)

    def _lags(self, name: str) -> Iterator[Sample]:
        for group_id, topic_partition, offset in self._offsets.committed():
            partition = self._partitions.get(topic_partition)
            if partition is not None:
                yield _sample(name, group_id, topic_partition, _lag(partition, offset))

    def _lags_seconds(self, name: str) -> Iterator[Sample]:
        now_ms, times, left = self._clock(), self._times, MAX_TIMES_READ
        self._times = {}
        for group_id, topic_partition, offset in self._offsets.committed():
            partition = self._partitions.get(topic_partition)
            if partition is None:
                continue
            if _lag(partition, offset) == 0:
                yield _sample(name, group_id, topic_partition, 0)
                continue
            key = topic_partition, offset
            if key in times:
                self._times[key] = times[key]
            elif left:
                left -= 1
                self._times[key] = _time_of(partition, offset)
            if self._times.get(key, -1) >= 0:
                yield _sample(name, group_id, topic_partition, max(0, now_ms - self._times[key]) / 1000)


def _sample(name: str, group_id: str, topic_partition: TopicPartition, value: float) -> Sample:
    labels = (group_id, topic_partition.topic, str(topic_partition.partition))
    return Sample(name, dict(zip(_LABELS, labels, strict=True)), value)


def _lag(partition: Partition, offset: Offset) -> int:
    return max(0, partition.high_watermark - max(offset, partition.log.log_start_offset))


def _time_of(partition: Partition, offset: Offset) -> int:
    """The time of the first record of the batch that is read from this offset on; -1 if it has none."""
    try:
        header = next(partition.log.headers(max(offset, partition.log.log_start_offset)), None)
    except PipelineError:
        return -1
    return -1 if header is None else header.base_timestamp
