"""Metadata (3), v0 to v13: brokers, topics and leaders. v1: null requests all topics, v10: topic ids (KIP-516).

- Requested topics are created if `auto.create.topics.enable` and the request allow it (requests before v4 always do);
  not topics of this project's services, which know their settings, nor topics that ZooKeeper lost, whose logs exist.
- LEADER_NOT_AVAILABLE: the leader is dead and no other is elected yet, or no partition of the topic has had a leader
  yet. UNKNOWN_TOPIC_OR_PARTITION is only for topics that do not exist.
- A topic is described with all its partitions, since clients count them.
- A request for all topics skips topics that are about to get their first leaders: clients that subscribe to a pattern
  would see an error. Topics that cannot get leaders now are described, so that they do not seem deleted.
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import trio

from pipeline.broker.cluster.view import NO_BROKER, ClusterView, PartitionView, TopicView
from pipeline.broker.groups.journal import GROUP_METADATA_TOPIC
from pipeline.broker.groups.journal_topic import journal_topic
from pipeline.broker.requests.authorized_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns, give_way
from pipeline.broker.topics.plan import WantedTopic, check_topic_name
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError
from pipeline.model import TopicPartition
from pipeline.net.answers import LargeAnswer
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.metadata import (
    FIRST_VERSION_OF_ASKING_BY_ID,
    NOT_ASKED_FOR,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pipeline.protocol.schema import ZERO_UUID

AUTO_CREATE_TIMEOUT_S = 5.0
"""Time to create all topics of a request; clients repeat the request for the rest."""
MAX_TOPICS_AT_ONCE = 200
MAX_PARTITIONS_AT_ONCE = 1000
"""Partitions that are described before other requests have a turn."""
TOPICS_OF_SERVICES = frozenset(
    {
        "_audit",
        "_mirror_epochs",
        "_mirror_gaps",
        "_mirror_group_offsets",
        "_mirror_partitions",
        "_mirror_pauses",
        "_mirror_selections",
        "_schemas",
    }
)
KAFKAS_INTERNAL_TOPICS = frozenset({"__transaction_state", "__share_group_state"})
"""Topics of transactions and share groups, which are not served: they must not become ordinary topics."""

_UNDER_WAY = frozenset({ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT})

logger = get_logger(__name__)


def handle(
    broker: BrokerContext, request: MetadataRequest, version: int, caller: Caller
) -> MetadataResponse | Awaitable[Any]:
    """Answer at once, unless topics must be created first, or are very many."""
    listener = caller.listener
    if version < FIRST_VERSION_OF_ASKING_BY_ID and (unnamed := _refuse_unnamed(request)):
        return _answer(broker, listener, request, unnamed)
    if request.topics is not None:
        request = replace(request, topics=_each_once(request.topics))
    if request.topics is None or (version == 0 and not request.topics):
        known = [topic for topic in broker.view.topics() if is_listed(topic, broker.view)]
        if sum(len(topic.partitions) for topic in known) > MAX_PARTITIONS_AT_ONCE:
            return _describe_many(broker, listener, request, known)
        return _answer(broker, listener, request, [describe_topic(topic, broker.view) for topic in known])
    if broker.settings.static.auto_create_topics and request.allow_auto_topic_creation:
        missing = [
            topic.name
            for topic in request.topics
            if topic.name is not None
            and topic.topic_id == ZERO_UUID
            and topic.name not in TOPICS_OF_SERVICES | KAFKAS_INTERNAL_TOPICS
            and not _is_known_here(broker, topic.name)
        ]
        if missing:
            return _create_and_answer(broker, listener, request, missing)
    if _is_large(broker, request.topics):
        return _describe_many(broker, listener, request, request.topics)
    return _answer(broker, listener, request, [_find_topic(broker, topic) for topic in request.topics])


def _is_large(broker: BrokerContext, topics: Sequence[MetadataRequestTopic]) -> bool:
    """True if other requests need a turn while the answer is built."""
    if len(topics) > MAX_TOPICS_AT_ONCE:
        return True
    found = (_seen(broker, topic) for topic in topics)
    return sum(len(topic.partitions) for topic in found if topic is not None) > MAX_PARTITIONS_AT_ONCE


def _seen(broker: BrokerContext, asked: MetadataRequestTopic) -> TopicView | None:
    if asked.topic_id != ZERO_UUID:
        return broker.view.topic_of_id(asked.topic_id)
    return broker.view.topic(asked.name or "")


def _each_once(topics: Sequence[MetadataRequestTopic]) -> Sequence[MetadataRequestTopic]:
    return tuple({topic.name if topic.topic_id == ZERO_UUID else topic.topic_id: topic for topic in topics}.values())


def _refuse_unnamed(request: MetadataRequest) -> Sequence[MetadataResponseTopic]:
    """Refuse all topics if one of them has no name, or has an id, as in Kafka; return () otherwise."""
    topics = request.topics or ()
    if all(topic.name is not None and topic.topic_id == ZERO_UUID for topic in topics):
        return ()
    return [MetadataResponseTopic(name=topic.name or "", error_code=ErrorCode.INVALID_REQUEST) for topic in topics]


async def _describe_many(
    broker: BrokerContext,
    listener: str,
    request: MetadataRequest,
    topics: Sequence[TopicView | MetadataRequestTopic],
    refusals: Mapping[str, ErrorCode] = MappingProxyType({}),
) -> LargeAnswer:
    """Describe topics, yielding to other requests in between; `refusals` could not be created."""
    described: list[MetadataResponseTopic] = []
    turns = Turns(MAX_PARTITIONS_AT_ONCE)
    await give_way()
    for topic in topics:
        if isinstance(topic, TopicView):
            described.append(describe_topic(topic, broker.view))
        elif topic.name is not None and topic.name in refusals:
            described.append(MetadataResponseTopic(name=topic.name, error_code=refusals[topic.name]))
        else:
            described.append(_find_topic(broker, topic))
        await turns.after(1 + len(described[-1].partitions))
    return LargeAnswer(_answer(broker, listener, request, described))


async def _create_and_answer(
    broker: BrokerContext, listener: str, request: MetadataRequest, missing: Sequence[str]
) -> LargeAnswer:
    refusals: dict[str, ErrorCode] = {}
    turns = Turns(MAX_TOPICS_AT_ONCE)
    deadline = trio.current_time() + AUTO_CREATE_TIMEOUT_S
    for name in missing:
        timeout_s = deadline - trio.current_time()
        try:
            if timeout_s > 0 and broker.view.topic(name) is None:
                is_journal = name == GROUP_METADATA_TOPIC
                asked = journal_topic(broker.settings.static) if is_journal else WantedTopic(name=name, settings={})
                await broker.topics.create_by_asking(asked, timeout_s=timeout_s)
        except KafkaError as error:
            if error.code not in _UNDER_WAY:
                refusals[name] = error.code
        except CoordinationError as error:
            logger.warning("topic_not_created", topic=name, error=str(error))
        if name not in refusals and broker.view.topic(name) is None:
            refusals[name] = ErrorCode.LEADER_NOT_AVAILABLE
        await turns.after()
    return await _describe_many(broker, listener, request, request.topics or (), refusals)


def _is_known_here(broker: BrokerContext, name: str) -> bool:
    topic = broker.view.topic(name)
    return topic is not None and is_known(topic)


def describe_topic(topic: TopicView, view: ClusterView) -> MetadataResponseTopic:
    """Describe a topic. A replica on a live broker is offline as well if its disk failed (KIP-112)."""
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE if is_known(topic) else ErrorCode.LEADER_NOT_AVAILABLE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            _describe_partition(TopicPartition(topic.name, index), partition, view)
            for index, partition in sorted(topic.partitions.items())
        ),
    )


def is_listed(topic: TopicView, view: ClusterView) -> bool:
    """True unless the topic is about to get its first leaders: the controller and a replica of each partition live."""
    return (
        is_known(topic)
        or view.controller not in view.brokers
        or any(view.brokers.keys().isdisjoint(partition.replicas) for partition in topic.partitions.values())
    )


def is_known(topic: TopicView) -> bool:
    """True if a partition of the topic has had a leader."""
    return any(partition.has_state for partition in topic.partitions.values())


def _describe_partition(
    topic_partition: TopicPartition, partition: PartitionView, view: ClusterView
) -> MetadataResponsePartition:
    brokers, lost = view.brokers, view.offline_replicas
    is_led = partition.leader in brokers
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if is_led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=topic_partition.partition,
        leader_id=partition.leader if is_led else NO_BROKER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=tuple(
            replica
            for replica in partition.replicas
            if replica not in brokers or topic_partition in lost.get(replica, ())
        ),
    )


def _find_topic(broker: BrokerContext, asked: MetadataRequestTopic) -> MetadataResponseTopic:
    topic = _seen(broker, asked)
    if topic is not None:
        return describe_topic(topic, broker.view)
    if asked.topic_id != ZERO_UUID:
        return MetadataResponseTopic(name=None, topic_id=asked.topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
    name = asked.name or ""
    return MetadataResponseTopic(name=name, error_code=code_of_missing(name))


def code_of_missing(name: str) -> ErrorCode:
    """Return UNKNOWN_TOPIC_OR_PARTITION, or the error of a name that no topic can have."""
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _answer(
    broker: BrokerContext, listener: str, request: MetadataRequest, topics: Sequence[MetadataResponseTopic]
) -> MetadataResponse:
    if request.include_topic_authorized_operations:
        topics = [
            topic
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_ID
            else replace(topic, topic_authorized_operations=TOPIC_OPERATIONS)
            for topic in topics
        ]
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=endpoint.id, host=address.host, port=address.port, rack=endpoint.rack)
            for endpoint in broker.view.brokers.values()
            if (address := endpoint.address_on(listener)) is not None
        ),
        cluster_id=broker.view.cluster_id,
        controller_id=broker.view.controller,
        topics=tuple(topics),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    )
