"""Metrics of groups: states named as by Kafka's JMX exporter, lag named as by Kafka exporters.

The coordinator of a group reports the lag of a partition if it leads the partition or its replica is in sync: the high
watermark of any other replica may be out of date. It always reports the committed offset. A lag below 0 means that the
committed offset is beyond the log end offset. In seconds the lag is the age of the first batch that the group has not
read completely; a group beyond the log end offset has none. Reading a time asks the disk, so each scrape reads only
MAX_TIMES_READ of them.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.groups.service import GroupService
from pipeline.broker.replication.partition import Partition
from pipeline.errors import PipelineError
from pipeline.model import BrokerId, Clock, Offset, TopicPartition
from pipeline.net.http.exposition import with_samples

_STATES = "kafka_coordinator_group_groupmetadatamanager_numgroups"
_GROUPS = "kafka_consumergroup"
_LABELS = ("consumergroup", "topic", "partition")
MAX_TIMES_READ = 200


class GroupMetrics:
    """Reads the groups coordinated here."""

    def __init__(
        self,
        groups: GroupService,
        partitions: Mapping[TopicPartition, Partition],
        view: ClusterView,
        own_id: BrokerId,
        clock: Clock,
    ) -> None:
        self._coordinator = groups.coordinator
        self._offsets = groups.offsets
        self._partitions = partitions
        self._view = view
        self._own_id = own_id
        self._clock = clock
        self._times: dict[tuple[TopicPartition, Offset], int] = {}

    def collect(self) -> Iterator[Metric]:
        """All metrics, read now."""
        runtime, counts = self._coordinator.runtime, self._coordinator.count_by_state()
        yield GaugeMetricFamily(_STATES, "Consumer groups that this broker coordinates.", value=sum(counts.values()))
        for state, count in counts.items():
            yield GaugeMetricFamily(f"{_STATES}{state.lower()}", f"Consumer groups here in state {state}.", value=count)
        yield CounterMetricFamily(
            "kafka_server_group_coordinator_metrics_group_completed_rebalance",
            "Rebalances of groups coordinated here that were completed.",
            value=runtime.rebalances,
        )
        for name, value, text in (
            ("waiting_requests", runtime.waiting_requests, "JoinGroup and SyncGroup requests that wait."),
            ("writes_under_way", runtime.writes_under_way, "Changes of groups that are being written."),
            ("offsets_under_way", self._offsets.under_way, "Offsets whose change is being written."),
            ("offsets_held_bytes", self._offsets.held_bytes, "Approximate memory of committed offsets."),
            ("held_bytes", self._coordinator.held_bytes, "Approximate memory of the members of groups."),
        ):
            yield GaugeMetricFamily(f"pipeline_groups_{name}", text, value=value)
        yield from self._collect_lags()

    def _collect_lags(self) -> Iterator[Metric]:
        for name, text, samples in (
            (
                "current_offset",
                "Committed offset: the offset of the next record that the group reads.",
                self._current_offsets,
            ),
            ("lag", "Records not read yet; below 0 if the committed offset is beyond the end.", self._lags),
            ("lag_seconds", "Age in seconds of the oldest record that the group has not read yet.", self._lags_seconds),
        ):
            name = f"{_GROUPS}_{name}"
            yield with_samples(GaugeMetricFamily(name, text, labels=_LABELS), samples(name))

    def _current_offsets(self, name: str) -> Iterator[Sample]:
        for group_id, topic_partition, offset in self._offsets.committed():
            yield _sample(name, group_id, topic_partition, offset)

    def _lags(self, name: str) -> Iterator[Sample]:
        for group_id, topic_partition, offset in self._offsets.committed():
            partition = self._in_sync(topic_partition)
            if partition is not None:
                yield _sample(name, group_id, topic_partition, _lag(partition, offset))

    def _lags_seconds(self, name: str) -> Iterator[Sample]:
        now_ms, times, left = self._clock(), self._times, MAX_TIMES_READ
        self._times = {}
        for group_id, topic_partition, offset in self._offsets.committed():
            partition = self._in_sync(topic_partition)
            if partition is None:
                continue
            if (lag := _lag(partition, offset)) <= 0:
                if lag == 0:
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

    def _in_sync(self, topic_partition: TopicPartition) -> Partition | None:
        """Return the partition if the replica here is known to have all acknowledged records."""
        partition = self._partitions.get(topic_partition)
        if partition is None or partition.log.failure is not None:
            return None
        if not partition.is_leader:
            known = self._view.partition(topic_partition)
            if known is None or self._own_id not in known.isr:
                return None
        return partition


def _sample(name: str, group_id: str, topic_partition: TopicPartition, value: float) -> Sample:
    labels = (group_id, topic_partition.topic, str(topic_partition.partition))
    return Sample(name, dict(zip(_LABELS, labels, strict=True)), value)


def _lag(partition: Partition, offset: Offset) -> int:
    """Return the lag, below 0 only beyond the log end offset: a follower's high watermark trails its leader's."""
    beyond = offset - partition.log.log_end_offset
    return -beyond if beyond > 0 else max(0, partition.high_watermark - max(offset, partition.log.log_start_offset))


def _time_of(partition: Partition, offset: Offset) -> int:
    """Return the time of the batch at this offset; -1 if there is none."""
    try:
        header = next(partition.log.headers(max(offset, partition.log.log_start_offset)), None)
    except PipelineError:
        return -1
    return -1 if header is None else header.base_timestamp
