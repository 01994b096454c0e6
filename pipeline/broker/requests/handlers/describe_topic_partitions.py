"""DescribeTopicPartitions (75), v0: partitions of topics in the order of their names, a page at a time (KIP-966).

A page ends at the limit; the cursor names the partition that the next page begins with.
"""

from collections.abc import Sequence

from pipeline.broker.requests.authorized_operations import TOPIC_OPERATIONS
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.requests.handlers.metadata import code_of_missing, describe_topic, is_known, is_listed
from pipeline.broker.runtime.slicing import Turns, give_way
from pipeline.net.answers import LargeAnswer
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from pipeline.protocol.messages.metadata import MetadataResponsePartition

AT_ONCE = 1000
"""Topics and partitions that are read before other requests have a turn."""
MAX_TOPICS_OF_SMALL = 100
"""Topics of a page about which the event loop decides: some 50 µs for each that the client may describe."""
MAX_PARTITIONS = 2000
"""Kafka's default of `max.request.partition.size.limit`."""


async def handle(
    broker: BrokerContext, request: DescribeTopicPartitionsRequest, _version: int, _caller: Caller
) -> DescribeTopicPartitionsResponse | LargeAnswer:
    """Answer as this broker sees the cluster. Threads find what the client may do with the topics of a large page."""
    page = await _describe_page(broker, request)
    return LargeAnswer(page) if not request.topics or len(page.topics) > MAX_TOPICS_OF_SMALL else page


async def _describe_page(
    broker: BrokerContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    limit = max(1, min(request.response_partition_limit, MAX_PARTITIONS))
    cursor = request.cursor or Cursor()
    view = broker.view
    names = sorted(
        {topic.name for topic in request.topics} or {topic.name for topic in view.topics() if is_listed(topic, view)}
    )
    described: list[DescribeTopicPartitionsResponseTopic] = []
    turns = Turns(AT_ONCE)
    await give_way()
    for name in names:
        await turns.after()
        if name < cursor.topic_name:
            continue
        if limit == 0:
            return _page(described, Cursor(topic_name=name, partition_index=0))
        first = cursor.partition_index if name == cursor.topic_name else 0
        topic = broker.view.topic(name)
        if topic is None or not is_known(topic):
            code = code_of_missing(name) if topic is None else ErrorCode.LEADER_NOT_AVAILABLE
            described.append(
                DescribeTopicPartitionsResponseTopic(
                    error_code=code, name=name, topic_authorized_operations=TOPIC_OPERATIONS
                )
            )
            continue
        whole = describe_topic(topic, broker.view)
        await turns.after(len(whole.partitions))
        partitions = [partition for partition in whole.partitions if partition.partition_index >= first]
        described.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=[_describe(partition) for partition in partitions[:limit]],
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
        )
        if len(partitions) > limit:
            return _page(described, Cursor(topic_name=name, partition_index=partitions[limit].partition_index))
        limit -= len(partitions)
    return _page(described, None)


def _page(
    topics: Sequence[DescribeTopicPartitionsResponseTopic], next_cursor: Cursor | None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=next_cursor)


def _describe(partition: MetadataResponsePartition) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=partition.error_code,
        partition_index=partition.partition_index,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replica_nodes,
        isr_nodes=partition.isr_nodes,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=partition.offline_replicas,
    )
