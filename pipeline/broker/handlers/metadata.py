"""Metadata (3): brokers, topics and leaders. Null asks for all topics since v1, topic ids since v10
(KIP-516).

Topics are made on asking only if the broker's `auto.create.topics.enable` and the request both allow it.
A leader that is not alive is told as none: LEADER_NOT_AVAILABLE until another one is elected. Partitions that had none
yet are not told at all: librdkafka takes such an answer for the last word on a topic, and asks no more.
"""

from collections.abc import Awaitable, Collection, Sequence
from dataclasses import replace

from pipeline.broker.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED_FOR, TOPIC_OPERATIONS
from pipeline.broker.cluster_view import NO_BROKER, PartitionView, TopicView
from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.groups.journal import GROUP_METADATA_TOPIC
from pipeline.broker.groups.journal_topic import journal_topic
from pipeline.broker.topic_changes import create_topic
from pipeline.broker.topic_plan import TopicRequest, check_topic_name
from pipeline.errors import CoordinationError
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pipeline.protocol.schema import ZERO_UUID

AUTO_CREATE_TIMEOUT_S = 5.0


def handle(
    broker: BrokerContext, request: MetadataRequest, version: int, _caller: Caller
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Answers at once, unless topics are to be made first."""
    if request.topics is None or (version == 0 and not request.topics):
        topics = [describe_topic(topic, broker.view.brokers) for topic in broker.view.topics() if is_known(topic)]
        return _answer(broker, request, topics)
    if broker.config.auto_create_topics and request.allow_auto_topic_creation:
        missing = [
            topic.name
            for topic in request.topics
            if topic.name is not None and topic.topic_id == ZERO_UUID and broker.view.topic(topic.name) is None
        ]
        if missing:
            return _create_and_answer(broker, request, missing)
    return _answer(broker, request, [_find_topic(broker, topic) for topic in request.topics])


async def _create_and_answer(
    broker: BrokerContext, request: MetadataRequest, missing: Sequence[str]
) -> MetadataResponse:
    refusals: dict[str, ErrorCode] = {}
    for name in missing:
        try:
            is_journal = name == GROUP_METADATA_TOPIC
            asked = journal_topic(broker.config) if is_journal else TopicRequest(name=name, settings={})
            await create_topic(broker, asked, timeout_s=AUTO_CREATE_TIMEOUT_S)
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                refusals[name] = error.code
        except CoordinationError:
            refusals[name] = ErrorCode.LEADER_NOT_AVAILABLE
    described = [_find_topic(broker, topic) for topic in request.topics or ()]
    return _answer(
        broker,
        request,
        [
            MetadataResponseTopic(name=topic.name, error_code=refusals[topic.name])
            if topic.name is not None and topic.name in refusals
            else topic
            for topic in described
        ],
    )


def describe_topic(topic: TopicView, brokers: Collection[BrokerId]) -> MetadataResponseTopic:
    """A topic as clients are told of it."""
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            _describe_partition(index, partition, brokers)
            for index, partition in sorted(topic.partitions.items())
            if partition.state_version >= 0
        ),
    )


def is_known(topic: TopicView) -> bool:
    """Whether clients are told of it: one of its partitions has had a leader."""
    return any(partition.state_version >= 0 for partition in topic.partitions.values())


def _describe_partition(
    index: int, partition: PartitionView, brokers: Collection[BrokerId]
) -> MetadataResponsePartition:
    is_led = partition.leader in brokers
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if is_led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader if is_led else NO_BROKER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=tuple(replica for replica in partition.replicas if replica not in brokers),
    )


def _find_topic(broker: BrokerContext, asked: MetadataRequestTopic) -> MetadataResponseTopic:
    if asked.topic_id != ZERO_UUID:
        topic = broker.view.topic_of_id(asked.topic_id)
        if topic is None or not is_known(topic):
            return MetadataResponseTopic(name=None, topic_id=asked.topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
    else:
        name = asked.name or ""
        topic = broker.view.topic(name)
        if topic is None or not is_known(topic):
            try:
                check_topic_name(name)
            except KafkaError as error:
                return MetadataResponseTopic(name=name, error_code=error.code)
            return MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return describe_topic(topic, broker.view.brokers)


def _answer(
    broker: BrokerContext, request: MetadataRequest, topics: Sequence[MetadataResponseTopic]
) -> MetadataResponse:
    if request.include_topic_authorized_operations:
        topics = [
            topic
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else replace(topic, topic_authorized_operations=TOPIC_OPERATIONS)
            for topic in topics
        ]
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(
                node_id=endpoint.id, host=endpoint.address.host, port=endpoint.address.port, rack=endpoint.rack
            )
            for endpoint in broker.view.brokers.values()
        ),
        cluster_id=broker.view.cluster_id,
        controller_id=broker.view.controller,
        topics=tuple(topics),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    )
