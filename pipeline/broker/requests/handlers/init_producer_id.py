"""InitProducerId (22), v0 to v6: a producer id for idempotent produce (KIP-98); v3: again after an error (KIP-360).

- Each answer has a new id at epoch 0, whatever id and epoch the producer has, as in Kafka.
- A producer that the audit counts gets an id with a mark, if it asks for one (see `records.producer_marks`).
- Transactional ids, and an id without an epoch or an epoch without an id, are INVALID_REQUEST.
"""

from collections.abc import Awaitable

import trio

from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.errors import CoordinationError
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pipeline.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from pipeline.records.producer_marks import mark_producer_id

TIMEOUT_S = 10.0
FIRST_EPOCH = 0


def handle(
    broker: BrokerContext, request: InitProducerIdRequest, _version: int, _caller: Caller
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Answer at once, unless this broker needs a new block of ids."""
    is_half_known = (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH)
    if request.transactional_id is not None or is_half_known:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
    producer_id = broker.produce.ids.next_or_none()
    if producer_id is None:
        return _claim_and_answer(broker, is_counted=request.is_counted)
    return _answer(producer_id, is_counted=request.is_counted)


async def _claim_and_answer(broker: BrokerContext, *, is_counted: bool) -> InitProducerIdResponse:
    try:
        with trio.fail_after(TIMEOUT_S):
            producer_id = await broker.produce.ids.next()
    except (CoordinationError, trio.TooSlowError):
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _answer(producer_id, is_counted=is_counted)


def _answer(producer_id: int, *, is_counted: bool) -> InitProducerIdResponse:
    if is_counted:
        producer_id = mark_producer_id(producer_id)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)
