"""FindCoordinator (10), v0 to v6: the broker that coordinates a group. v4: several groups in one request (KIP-699).

- The coordinator is the leader of the group's partition of `__consumer_offsets`; the first request creates that topic.
- Transactional ids and share groups are INVALID_REQUEST: a client would repeat COORDINATOR_NOT_AVAILABLE for minutes.
"""

from collections.abc import Awaitable, Sequence

from pipeline.broker.cluster.view import NO_BROKER
from pipeline.broker.groups.journal import GROUP_METADATA_TOPIC
from pipeline.broker.groups.journal_topic import ensure_journal_topic
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.model import BrokerEndpoint, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.find_coordinator import (
    FIRST_VERSION_OF_MANY_KEYS,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP = 0
REFUSED_TYPES = {1: "Transactions are not served.", 2: "Share groups are not served."}
NO_PORT = -1


def handle(
    broker: BrokerContext, request: FindCoordinatorRequest, version: int, caller: Caller
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """Answer at once, unless the topic must be created first."""
    keys = request.coordinator_keys if version >= FIRST_VERSION_OF_MANY_KEYS else (request.key,)
    if request.key_type == GROUP and broker.view.applied(GROUP_METADATA_TOPIC) is None:
        return _create_and_answer(broker, caller.listener, keys, version)
    return _answer([_find(broker, caller.listener, request.key_type, key) for key in keys], version)


async def _create_and_answer(
    broker: BrokerContext, listener: str, keys: Sequence[str], version: int
) -> FindCoordinatorResponse:
    try:
        await ensure_journal_topic(broker.topics)
    except KafkaError as error:
        return _answer([_refusal(key, error) for key in keys], version)
    return _answer([_find(broker, listener, GROUP, key) for key in keys], version)


def _find(broker: BrokerContext, listener: str, key_type: int, key: str) -> Coordinator:
    try:
        endpoint = _endpoint(broker, key_type, key)
        address = endpoint.address_on(listener)
        if address is None:  # that broker cannot be reached in the client's way
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    except KafkaError as error:
        return _refusal(key, error)
    return Coordinator(key=key, node_id=endpoint.id, host=address.host, port=address.port)


def _refusal(key: str, error: KafkaError) -> Coordinator:
    return Coordinator(
        key=key,
        node_id=NO_BROKER,
        port=NO_PORT,
        error_code=error.code,
        error_message=error.detail or error.code.message,
    )


def _endpoint(broker: BrokerContext, key_type: int, key: str) -> BrokerEndpoint:
    if key_type != GROUP:
        raise KafkaError(ErrorCode.INVALID_REQUEST, REFUSED_TYPES.get(key_type, f"Unknown key type {key_type}."))
    topic_partition = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.journal.partition_for(key))
    partition = broker.view.partition(topic_partition)
    leader = None if partition is None else broker.view.brokers.get(partition.leader)
    if leader is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if leader.id == broker.settings.static.broker_id:
        own = broker.replicas.partitions.get(topic_partition)
        if own is None or not own.is_leader:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return leader


def _answer(found: Sequence[Coordinator], version: int) -> FindCoordinatorResponse:
    if version >= FIRST_VERSION_OF_MANY_KEYS:
        return FindCoordinatorResponse(coordinators=tuple(found))
    (only,) = found
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )
