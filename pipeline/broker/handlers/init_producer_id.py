"""InitProducerId (22): an id for an idempotent producer (KIP-98), asked for again after an error (v3, KIP-360).

Without a transactional id Kafka answers every such request with a new id at epoch 0, and so do we.
"""

from collections.abc import Awaitable

import trio

from pipeline.broker.context import BrokerContext, Caller
from pipeline.errors import CoordinationError
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

TIMEOUT_S = 10.0
FIRST_EPOCH = 0


def handle(
    broker: BrokerContext, request: InitProducerIdRequest, _version: int, _caller: Caller
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Answers at once, unless a new block of ids is needed."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
    producer_id = broker.producer_ids.next_or_none()
    if producer_id is None:
        return _claim_and_answer(broker)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)


async def _claim_and_answer(broker: BrokerContext) -> InitProducerIdResponse:
    try:
        with trio.fail_after(TIMEOUT_S):
            producer_id = await broker.producer_ids.next()
    except (CoordinationError, trio.TooSlowError):
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)
