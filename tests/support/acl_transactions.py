"""Requests of the ACL matrix that name a transactional id.

Our broker serves no transactions: it refuses such a request as one that it does not serve, but only to a client that
has the rights. A client without them gets Apache Kafka's answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from pipeline.protocol.api import ApiKey
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages import produce
from pipeline.protocol.messages.find_coordinator import FIRST_VERSION_OF_MANY_KEYS, FindCoordinatorRequest
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest
from pipeline.protocol.schema import Message
from tests.support.acl_requests import TOPICS, Build
from tests.support.transactions import transactional

TRANSACTIONS = ("t", "tu", "u")
"""Transactional ids that are asked for; users have rights on single ones."""
OF_TRANSACTION = 1
"""Type of the key of FindCoordinator."""
SOME_PRODUCER = 123_456
AFTER_THE_RIGHTS = frozenset(
    {
        ErrorCode.NONE,
        *(ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        *(ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR),
        *(ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED),
    }
)
"""Codes of clients that had the rights: Apache Kafka looks at the transaction, our broker serves none."""
PASSED = "had the rights"


def _init(version: int, _: str, __: Mapping[str, UUID]) -> Sequence[Message]:
    asked = [InitProducerIdRequest(transactional_id=each, transaction_timeout_ms=60_000) for each in TRANSACTIONS]
    if version >= 3:
        asked.append(
            InitProducerIdRequest(
                transactional_id="t", transaction_timeout_ms=60_000, producer_id=SOME_PRODUCER, producer_epoch=0
            )
        )
    return asked


def _find(version: int, _: str, __: Mapping[str, UUID]) -> Sequence[Message]:
    if version < FIRST_VERSION_OF_MANY_KEYS:
        return [FindCoordinatorRequest(key=each, key_type=OF_TRANSACTION) for each in TRANSACTIONS]
    return [FindCoordinatorRequest(coordinator_keys=TRANSACTIONS, key_type=OF_TRANSACTION)]


# Batches of a transaction whose request names none are left out: Apache Kafka refuses them before it looks at the
# topics, and our broker behind them, with the same code.
def _produce(_: int, __: str, ids: Mapping[str, UUID]) -> Sequence[Message]:
    return [
        produce.ProduceRequest(
            transactional_id=each, acks=-1, timeout_ms=5000, topic_data=[_data(name, ids) for name in TOPICS]
        )
        for each in TRANSACTIONS
    ]


def _data(name: str, ids: Mapping[str, UUID]) -> produce.TopicProduceData:
    records = transactional(b"v", producer_id=SOME_PRODUCER)
    return produce.TopicProduceData(
        name=name, topic_id=ids[name], partition_data=[produce.PartitionProduceData(index=0, records=records)]
    )


TRANSACTIONAL_BUILDERS: Mapping[ApiKey, Build] = {
    ApiKey.INIT_PRODUCER_ID: _init,
    ApiKey.FIND_COORDINATOR: _find,
    ApiKey.PRODUCE: _produce,
}
"""Requests by api key: all keys of transactions that our broker serves."""
FIRST_VERSION = {ApiKey.FIND_COORDINATOR: 1}
"""Older versions have no type of the key."""


def by_rights_alone(answer: Any) -> Any:
    """What an answer says about rights: codes of clients that had them are alike."""
    if isinstance(answer, dict):
        return {
            name: PASSED if name == "error_code" and value in AFTER_THE_RIGHTS else by_rights_alone(value)
            for name, value in answer.items()
        }
    return [by_rights_alone(each) for each in answer] if isinstance(answer, list) else answer
