"""Blocks of producer ids."""

import pytest

from pipeline.broker.requests.producer_ids import BLOCK_SIZE, IDS_PER_MS, next_block
from pipeline.coordination.interface import NodeValue
from pipeline.model import BrokerId

BROKER = BrokerId(1)


def test_blocks_follow_each_other() -> None:
    first = next_block(None, BROKER, 0)
    assert (first.first, first.last) == (0, BLOCK_SIZE - 1)
    assert next_block(NodeValue(first.encode(), 0), BROKER, 0).first == BLOCK_SIZE


def test_a_block_that_zookeeper_forgot_is_not_claimed_again() -> None:
    backup = NodeValue(next_block(None, BROKER, 1).encode(), 0)
    forgotten = next_block(backup, BROKER, 1)
    assert next_block(backup, BROKER, 2).first == 2 * IDS_PER_MS
    assert next_block(backup, BROKER, 3).first > forgotten.last


@pytest.mark.parametrize(
    "stored",
    [b"", b"garbage", b"{}", b'{"version":1,"broker":1,"block_start":"0","block_end":"9223372036854775807"}'],
)
def test_an_unreadable_block_is_replaced_by_one_that_begins_at_the_time(stored: bytes) -> None:
    assert next_block(NodeValue(stored, 7), BROKER, 5).first == 5 * IDS_PER_MS
