"""Brokers about themselves: the cluster (KIP-700), log directories (KIP-113), versions of the protocol."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.client.cluster.cluster import Cluster
from pipeline.model import BrokerEndpoint, BrokerId, HostPort, TopicPartition
from pipeline.net.connection_pool import SOFTWARE_NAME, SOFTWARE_VERSION
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from pipeline.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from pipeline.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from pipeline.protocol.schema import ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """A cluster. `controller` is the broker that changes topics."""

    cluster_id: str
    controller: BrokerId
    brokers: Sequence[BrokerEndpoint]
    zookeeper_silence_s: float = 0
    """Seconds since the answering broker reached ZooKeeper, if at least its session timeout; else 0."""
    problem: str = ""
    """Reason why the answering broker could not join its cluster again; empty if it could."""
    lost_znodes: Sequence[str] = ()
    """The first hundred znodes of topics that the answering broker finds missing or unreadable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayLog:
    """A log of a broker that belongs to none of its partitions. `topic_id` is None if the log has none."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID | None
    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """A log directory. With an `error` nothing else is known of it. Bytes of its disk are None if not reported."""

    path: str
    error: ErrorCode | None
    total_bytes: int | None = None
    usable_bytes: int | None = None
    partitions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Bytes of each log."""
    strays: Sequence[StrayLog] = ()
    """Strays; empty for a broker of another maker."""
    lack_of_room: str = ""
    """A sentence that says that the log dir is full; else empty, as for a broker of another maker."""


async def describe_cluster(cluster: Cluster, broker: BrokerId | None = None, *, timeout_s: float) -> ClusterDescription:
    """Return the cluster as this broker, or any broker (None), sees it. Raises KafkaError, NetworkError."""
    request = DescribeClusterRequest()
    found: DescribeClusterResponse
    if broker is None:
        found = await cluster.request_any(request, timeout_s=timeout_s)
    else:
        found = await cluster.request(broker, request, timeout_s=timeout_s)
    if found.error_code != ErrorCode.NONE:
        raise KafkaError(found.error_code, found.error_message)
    return ClusterDescription(
        cluster_id=found.cluster_id,
        controller=BrokerId(found.controller_id),
        brokers=tuple(
            BrokerEndpoint(id=BrokerId(broker.broker_id), address=HostPort(broker.host, broker.port), rack=broker.rack)
            for broker in sorted(found.brokers, key=lambda broker: broker.broker_id)
        ),
        zookeeper_silence_s=found.zookeeper_silence_ms / 1000,
        problem=found.problem,
        lost_znodes=tuple(found.lost_znodes),
    )


async def describe_log_dirs(cluster: Cluster, broker: BrokerId, *, timeout_s: float) -> list[LogDir]:
    """Return the log directories of a broker with their logs. Raises KafkaError, NetworkError."""
    request = DescribeLogDirsRequest(topics=None)
    response: DescribeLogDirsResponse = await cluster.request(broker, request, timeout_s=timeout_s)
    if response.error_code != ErrorCode.NONE:
        raise KafkaError(response.error_code, f"log dirs of broker {broker}")
    return [
        LogDir(
            path=result.log_dir,
            error=None if result.error_code == ErrorCode.NONE else ErrorCode.of(result.error_code),
            total_bytes=None if result.total_bytes < 0 else result.total_bytes,
            usable_bytes=None if result.usable_bytes < 0 else result.usable_bytes,
            partitions={
                TopicPartition(topic.name, partition.partition_index): partition.partition_size
                for topic in result.topics
                for partition in topic.partitions
            },
            strays=tuple(
                StrayLog(
                    topic_partition=TopicPartition(stray.topic, stray.partition),
                    topic_id=None if stray.topic_id == ZERO_UUID else stray.topic_id,
                    path=stray.path,
                    reason=stray.reason,
                )
                for stray in result.strays
            ),
            lack_of_room=result.lack_of_room,
        )
        for result in response.results
    ]


async def describe_versions(cluster: Cluster, broker: BrokerId, *, timeout_s: float) -> dict[int, tuple[int, int]]:
    """Return the lowest and highest version of each api key of a broker. Raises KafkaError, NetworkError."""
    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
    response: ApiVersionsResponse = await cluster.request(broker, request, timeout_s=timeout_s)
    return {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
