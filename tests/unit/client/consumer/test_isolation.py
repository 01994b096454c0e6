"""READ_COMMITTED: what a consumer asks for, how it names the aborted transactions, and that it leaves them out."""

from typing import Any

import pytest
import trio

from pipeline.client.cluster.config import ConsumerConfig, IsolationLevel
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.client.consumer.consumer import Consumer
from pipeline.client.consumer.fetch_plan import FetchBounds, begin_at, fetch_request, judge_answer
from pipeline.client.simple.simple_consumer import open_simple_consumer
from pipeline.model import TopicPartition
from pipeline.protocol.messages.fetch import AbortedTransaction, PartitionData
from tests.support.bad_batches import patched
from tests.support.mirrors import batch_at
from tests.support.scripted_broker import Partition, ScriptedCluster
from tests.support.transactions import TRANSACTIONAL, marker, transactional
from tests.unit.client.conftest import OpenCluster, OpenConsumer
from tests.unit.client.consumer.conftest import DEADLINE_S, T0

CLICKS = TopicPartition("clicks", 0)
BOUNDS = FetchBounds(max_bytes=1000, max_partition_bytes=1000, max_wait_ms=0)


def test_a_request_has_the_isolation_level_of_the_settings() -> None:
    for level in IsolationLevel:
        request = fetch_request([begin_at(CLICKS, 0)], ClusterMetadata(), ConsumerConfig(isolation_level=level), BOUNDS)
        assert request.isolation_level == level


def test_fetched_batches_name_the_aborted_transactions() -> None:
    data = PartitionData(
        high_watermark=9,
        aborted_transactions=(AbortedTransaction(producer_id=7, first_offset=3),),
        records=memoryview(batch_at(4, b"a")),
    )
    batches = judge_answer(CLICKS, 4, data).batches
    assert batches is not None
    assert batches.aborted == ((7, 3),)


def write_history(partition: Partition) -> int:
    """Transactions of two producers, one of which aborts twice. A batch of it cannot be opened. Return the end."""
    garbage = patched(transactional(b"never opened", producer_id=7), 21, ">h", TRANSACTIONAL | 7)
    first = partition.append_batch(transactional(b"aborted", b"too", producer_id=7))
    partition.append_batch(transactional(b"committed", producer_id=8))
    partition.append_batch(garbage)
    partition.append_values([b"plain"])
    partition.aborted.append((7, first, partition.append_batch(marker(0, commits=False))))
    partition.append_batch(transactional(b"committed later", producer_id=7))
    partition.append_batch(marker(0, commits=True))
    first = partition.append_batch(transactional(b"aborted later", producer_id=7))
    partition.aborted.append((7, first, partition.append_batch(marker(0, commits=False))))
    return partition.log_end_offset


async def read_by_records(consumer: Consumer) -> list[bytes | None]:
    return [(await anext(consumer.records())).value for _ in range(3)]


async def read_by_columns(consumer: Consumer) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < 3:
        found += (await anext(consumer.columns(["value"]))).column("value").to_pylist()
    return found


@pytest.mark.parametrize("read", [read_by_records, read_by_columns])
@pytest.mark.parametrize("batches", [1, 1000])
async def test_records_of_aborted_transactions_are_left_out(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, read: Any, batches: int
) -> None:
    """Also if the broker answers batch by batch, so that an answer ends within a transaction."""
    scripted.fetch_limit_batches = batches
    end = write_history(scripted.partition(T0))
    level = IsolationLevel.READ_COMMITTED
    async with scripted.broker(1), connect() as cluster, consume(cluster, isolation_level=level) as consumer:
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S):
            assert await read(consumer) == [b"committed", b"plain", b"committed later"]
            async with trio.open_nursery() as nursery:  # the position moves past what is left out
                nursery.start_soon(read, consumer)
                while consumer.position(T0) < end:
                    await trio.sleep(0.001)
                nursery.cancel_scope.cancel()


async def test_a_fetch_at_an_offset_leaves_them_out_too(scripted: ScriptedCluster, connect: OpenCluster) -> None:
    write_history(scripted.partition(T0))
    config = ConsumerConfig(isolation_level=IsolationLevel.READ_COMMITTED)
    async with scripted.broker(1), connect() as cluster, open_simple_consumer(cluster, config) as consumer:
        batches = await consumer.fetch(T0, 1)
        values = [record.value for record in await consumer.records(batches)]
    assert values == [b"committed", b"plain", b"committed later"]


async def test_a_reset_to_the_latest_offset_is_one_to_the_end_of_committed_records(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer
) -> None:
    """What comes of a transaction that is open now is read later."""
    scripted.partition(T0).append_values([b"a"])
    asked: list[int] = []
    list_offsets = scripted._list_offsets

    def noting(broker: Any, request: Any) -> Any:
        asked.append(request.isolation_level)
        return list_offsets(broker, request)

    scripted._list_offsets = noting  # type: ignore[method-assign]
    settings = {"isolation_level": IsolationLevel.READ_COMMITTED, "auto_offset_reset": "latest"}
    async with scripted.broker(1), connect() as cluster, consume(cluster, **settings) as consumer:
        consumer.assign({T0: 77})
        with trio.fail_after(DEADLINE_S):
            while consumer.position(T0) != 1:
                assert await consumer.poll_batches(0.01) == []
    assert IsolationLevel.READ_COMMITTED in asked
