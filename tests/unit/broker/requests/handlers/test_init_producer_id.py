"""InitProducerId on a broker."""

import pytest

from tests.support.broker_in_process import Start


@pytest.mark.parametrize("count", [1001])
async def test_producer_ids_outlast_a_block(start: Start, count: int) -> None:
    from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest

    async with start() as broker:
        given = [(await broker.ask(InitProducerIdRequest(transactional_id=None))).producer_id for _ in range(count)]
        assert len(set(given)) == count
