"""InitProducerId on a broker."""

import pytest

from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest
from pipeline.records.producer_marks import MARK, is_marked
from tests.support.broker_in_process import Start


@pytest.mark.parametrize("count", [1001])
async def test_producer_ids_outlast_a_block(start: Start, count: int) -> None:
    async with start() as broker:
        given = [(await broker.ask(InitProducerIdRequest(transactional_id=None))).producer_id for _ in range(count)]
        assert len(set(given)) == count


async def test_producers_that_are_counted_get_marked_ids_and_others_do_not(start: Start) -> None:
    async with start() as broker:
        given = [
            (await broker.ask(InitProducerIdRequest(transactional_id=None, is_counted=is_counted))).producer_id
            for is_counted in (True, False) * 600  # more than a block
        ]
    assert [is_marked(each) for each in given] == [True, False] * 600
    assert len({each & ~MARK for each in given}) == 1200
