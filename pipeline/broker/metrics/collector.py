"""Metrics of the broker, named as by Kafka's JMX exporter.

Each scrape reads the plain counts that the parts of the broker keep.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from pipeline.broker.metrics.clients import collect_contracts, collect_kept, collect_quotas
from pipeline.broker.metrics.groups import GroupMetrics
from pipeline.broker.metrics.replication import collect_controller, collect_copying, collect_replicas, collect_session
from pipeline.broker.metrics.requests import collect_connections, collect_requests
from pipeline.broker.metrics.security import collect_authorizations
from pipeline.broker.replication.isr_writer import IsrWriter
from pipeline.broker.replication.partition import Partition
from pipeline.broker.requests.context import BrokerContext
from pipeline.model import TopicPartition
from pipeline.net.http.exposition import with_samples
from pipeline.net.server import ServerStatistics

TOPIC = ("topic",)
PARTITION = ("topic", "partition")


class BrokerCollector(Collector):
    """Reads the counts of the broker."""

    def __init__(
        self,
        broker: BrokerContext,
        isr_writer: IsrWriter,
        connections: ServerStatistics,
        collect_logins: Callable[[], Iterator[Metric]] = lambda: iter(()),
    ) -> None:
        """`collect_logins`: of the listeners, which the broker's parts know nothing of."""
        self._broker = broker
        self._isr_writer = isr_writer
        self._connections = connections
        self._collect_logins = collect_logins
        self._groups = GroupMetrics(
            broker.groups, broker.replicas.partitions, broker.view, broker.settings.static.broker_id, broker.clock
        )

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, so that registration collects nothing."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All metrics, read now."""
        yield from self._collect_topics()
        yield from self._collect_logs()
        yield from collect_replicas(self._broker, self._isr_writer)
        yield from collect_copying(self._broker)
        yield from collect_controller(self._broker)
        yield from collect_session(self._broker.session)
        yield from self._groups.collect()
        yield from collect_kept(self._broker.groups.kept)
        yield from collect_quotas(self._broker.quotas)
        yield from collect_contracts(self._broker.produce.contracts, self._broker.view)
        yield from collect_requests(self._connections)
        yield from collect_connections(self._connections)
        yield from self._collect_logins()
        yield from collect_authorizations(self._broker.authorizer_log)

    def _collect_topics(self) -> Iterator[Metric]:
        prefix = "kafka_server_brokertopicmetrics"
        yield self._per_topic(
            f"{prefix}_bytesin",
            "Bytes that producers and mirrors appended here, by topic.",
            lambda partition: partition.bytes_in,
        )
        yield self._per_topic(
            f"{prefix}_bytesout",
            "Bytes that consumers fetched from here, by topic.",
            lambda partition: partition.bytes_out,
        )
        yield self._per_topic(
            f"{prefix}_messagesin",
            "Records that producers and mirrors appended here, by topic.",
            lambda partition: partition.messages_in,
        )
        yield self._per_topic(
            f"{prefix}_messagesout",
            "Records that consumers fetched from here, by topic; estimated from whole batches.",
            lambda partition: round(partition.messages_out),
        )
        produce, fetch = self._broker.produce, self._broker.fetch
        for name, value, text in (
            (
                "totalproducerequests",
                produce.partitions,
                "Partitions that Produce requests named: one request may name many.",
            ),
            ("failedproducerequests", produce.failed_partitions, "Partitions of these that were refused."),
            (
                "totalfetchrequests",
                fetch.partitions,
                "Partitions that answered Fetch requests named: one request may name many.",
            ),
            ("failedfetchrequests", fetch.failed_partitions, "Partitions of these that were refused."),
        ):
            yield CounterMetricFamily(f"{prefix}_{name}", text, value=value)

    def _per_topic(self, name: str, text: str, value_of: Callable[[Partition], int]) -> Metric:
        totals: dict[str, int] = defaultdict(int)
        for topic_partition, partition in self._broker.replicas.partitions.items():
            totals[topic_partition.topic] += value_of(partition)
        family = CounterMetricFamily(name, text, labels=TOPIC)
        for topic, total in sorted(totals.items()):
            family.add_metric((topic,), total)
        return family

    def _collect_logs(self) -> Iterator[Metric]:
        replicas = self._broker.replicas
        offline = len(replicas.directories.offline)
        yield GaugeMetricFamily(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Log dirs that are offline because their disk failed.",
            value=offline,
        )
        waiting = GaugeMetricFamily(
            "pipeline_log_dir_waiting_seconds",
            "Age of the oldest call that waits for the disk of a log dir.",
            labels=["log_dir"],
        )
        for directory in replicas.directories.opened:
            waiting.add_metric([str(directory.path)], replicas.disks.waiting_s(directory.path))
        yield waiting
        yield from self._collect_room()
        yield self._per_partition(
            "size", "Bytes of the log on this broker's disk.", lambda partition: partition.log.snapshot.size_bytes
        )
        yield self._per_partition(
            "numlogsegments",
            "Segments of the log on this broker's disk.",
            lambda partition: len(partition.log.snapshot.segments),
        )
        yield self._per_partition(
            "logstartoffset",
            "Offset of the oldest record of the log.",
            lambda partition: partition.log.log_start_offset,
        )
        yield self._per_partition(
            "logendoffset",
            "Offset that the next record of the log gets.",
            lambda partition: partition.log.log_end_offset,
        )

    def _collect_room(self) -> Iterator[Metric]:
        """Room on the disks of log dirs that are online, in bytes."""
        room = self._broker.room
        size, free, full = (
            GaugeMetricFamily(f"pipeline_log_dir_{name}", text, labels=["log_dir"])
            for name, text in (
                ("size_bytes", "Size of the file system that holds the log dir."),
                ("free_bytes", "Bytes that are free for the broker on the file system of the log dir."),
                ("full", "1 while the log dir is full, so that writes are refused; else 0."),
            )
        )
        for path, volume in sorted(room.volumes.items()):
            size.add_metric([str(path)], volume.total_bytes)
            free.add_metric([str(path)], volume.usable_bytes)
            full.add_metric([str(path)], int(path in room.full))
        yield from (size, free, full)

    def _per_partition(self, name: str, text: str, value_of: Callable[[Partition], int]) -> Metric:
        name = f"kafka_log_log_{name}"
        samples = (
            Sample(name, dict(zip(PARTITION, (topic, str(number)), strict=True)), value_of(partition))
            for (topic, number), partition in sorted(self._broker.replicas.partitions.items(), key=_by_name)
        )
        return with_samples(GaugeMetricFamily(name, text, labels=PARTITION), samples)


def _by_name(item: tuple[TopicPartition, Partition]) -> TopicPartition:
    return item[0]
