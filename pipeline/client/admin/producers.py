"""Idempotent producers that partitions remember (DescribeProducers, KIP-664; Apache Kafka has it since 2.8)."""

from collections.abc import Collection, Iterator, Mapping

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.leaders import ask_leaders
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.model import TopicPartition
from pipeline.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)

Producers = Mapping[int, ProducerState]
"""Producers of a partition by their ids."""


async def describe_producers(
    cluster: Cluster, partitions: Collection[TopicPartition], *, timeout_s: float
) -> dict[TopicPartition, Producers]:
    """Return the producers of each partition, as the leader's log has them up to its log end offset.

    Retries while leaders move. Raises KafkaError (UNSUPPORTED_VERSION if the brokers do not know the request),
    NetworkError or DeadlineExceededError.
    """
    wanted = dict.fromkeys(partitions, None)
    return await ask_leaders(cluster, wanted, _ask, _read, timeout_s=timeout_s)


def _ask(
    topics: Mapping[str, Mapping[int, None]], _view: ClusterMetadata, _timeout_ms: int
) -> DescribeProducersRequest:
    return DescribeProducersRequest(
        topics=tuple(TopicRequest(name=name, partition_indexes=tuple(numbers)) for name, numbers in topics.items())
    )


def _read(response: DescribeProducersResponse) -> Iterator[tuple[TopicPartition, int, Producers]]:
    for topic in response.topics:
        for partition in topic.partitions:
            producers = {producer.producer_id: producer for producer in partition.active_producers}
            yield TopicPartition(topic.name, partition.partition_index), partition.error_code, producers
