"""Tables through a producer: the records of `send`, batch by batch, and tables that are refused as a whole."""

from random import Random
from typing import Any

import pyarrow as pa
import pytest
import trio

from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.batches import DeliveryError
from pipeline.client.producer.columns import ColumnsNotAcceptedError
from pipeline.client.producer.partitioner import partition_for_key
from pipeline.client.producer.producer import open_producer
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.builder import MAX_TIMESTAMP_MS
from pipeline.records.compression import Codec
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import NOW_MS, OpenCluster, OpenProducer
from tests.unit.client.producer.conftest import DEADLINE_S, T0, values

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
U = [TopicPartition("u", number) for number in range(3)]


@pytest.fixture
def three(scripted: ScriptedCluster) -> ScriptedCluster:
    scripted.add_topic("u", [1, 1, 1])
    return scripted


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("codec", list(Codec))
async def test_every_field_arrives_in_batches_of_the_batch_size(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, codec: Codec
) -> None:
    extra = (("audit.host", b"h"),)
    headers: list[Any] = [None, [], [{"key": "a", "value": None}, {"key": "ä", "value": b"1" * 70}]] * 40
    keys = [None, b"", b"k" * 90] * 40
    table = pa.table(
        {
            "value": pa.array([*numbers(119), None], pa.binary()),
            "key": pa.array(keys, pa.binary()),
            "headers": pa.array(headers, HEADERS),
            "timestamp": pa.array([NOW_MS - number * 1000 if number % 7 else None for number in range(120)]),
        }
    )
    async with (
        scripted.broker(1),
        connect() as cluster,
        produce(cluster, compression=codec, record_headers=extra, batch_size=1500) as producer,
    ):
        delivery = await producer.send_columns("t", table)
        with trio.fail_after(DEADLINE_S):
            places = await delivery.wait()
    assert places.to_pydict() == {"partition": [0] * 120, "offset": list(range(120))}
    found = scripted.partition(T0).records()
    assert [record.value for record in found] == [*numbers(119), None]
    assert [record.key for record in found] == keys
    assert [record.timestamp_ms for record in found] == [NOW_MS - n * 1000 if n % 7 else NOW_MS for n in range(120)]
    pairs = [tuple((pair["key"], pair["value"]) for pair in row or ()) for row in headers]
    assert [record.headers for record in found] == [(*row, *extra) for row in pairs]
    batches = scripted.partition(T0).batches
    assert 5 < len(batches) < 20
    assert {header.codec for header, _ in batches} == {codec}
    if codec is Codec.NONE:
        assert all(len(data) <= 1500 for _, data in batches)


async def test_rows_go_where_send_sends_them_in_their_order(
    three: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    keys = [b"key %d" % (number % 17) if number % 3 else None for number in range(300)]
    named = [number % 2 if number % 5 == 0 else None for number in range(300)]
    table = pa.table({"value": numbers(300), "key": keys, "partition": pa.array(named, pa.uint8())})
    async with three.broker(1), connect() as cluster, produce(cluster, batch_size=400) as producer:
        delivery = await producer.send_columns("u", table)
        with trio.fail_after(DEADLINE_S):
            places = (await delivery.wait()).to_pylist()
    at = {place: {r.offset: r.value for r in three.partition(place).records()} for place in U}
    for number, place in enumerate(places):
        assert at[U[place["partition"]]][place["offset"]] == b"%d" % number
        if named[number] is not None:
            assert place["partition"] == named[number]
        elif keys[number] is not None:
            assert place["partition"] == partition_for_key(keys[number] or b"", 3)
    for partition in U:
        found = [int(value) for value in values(three, partition)]
        assert found == sorted(found)
    assert sum(map(len, at.values())) == 300


async def test_rows_without_key_fill_one_batch_after_the_other(
    three: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    table = pa.table({"value": [b"v" * 100] * 1000})
    async with three.broker(1), connect() as cluster, produce(cluster, batch_size=4000) as producer:
        await producer.send_columns("u", table)
        await producer.flush()
    sizes = [len(data) for partition in U for _, data in three.partition(partition).batches]
    assert len(sizes) <= 32
    assert all(len(three.partition(partition).batches) > 3 for partition in U)


async def test_columns_between_sends_keep_the_order_of_the_task(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster, linger_ms=1000) as producer:
        await producer.send("t", b"first")
        await producer.send_columns("t", pa.table({"value": numbers(50)}))
        await producer.send("t", b"last")
        scripted.produce_script += [ErrorCode.NOT_ENOUGH_REPLICAS, "close after"]
        await producer.flush()
    assert values(scripted) == [b"first", *numbers(50), b"last"]


@pytest.mark.parametrize(
    "values_type",
    [pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view(), pa.binary(3)],
    ids=str,
)
async def test_slices_chunks_and_types_of_text_are_taken(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, values_type: Any
) -> None:
    given = [None, *(b"%03d" % number for number in range(199))]
    column = pa.array(given, pa.binary()).cast(pa.string() if pa.types.is_string_view(values_type) else pa.binary())
    typed = pa.array(given, values_type) if pa.types.is_fixed_size_binary(values_type) else column.cast(values_type)
    table = pa.Table.from_batches(
        [pa.record_batch({"value": typed.slice(5, 95)}), pa.record_batch({"value": typed.slice(100, 0)})]
    )
    whole = pa.concat_tables([table, pa.table({"value": typed}).slice(100)])
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        delivery = await producer.send_columns("t", whole.slice(1))
        await producer.send_columns("t", pa.record_batch({"value": typed.slice(0, 2)}))
        await producer.flush()
        assert len(await delivery.wait()) == 194
    assert values(scripted) == [*given[6:], None, b"000"]


async def test_an_empty_table_is_delivered(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        for empty in (
            pa.table({"value": pa.array([], pa.binary())}),
            pa.table({"value": pa.chunked_array([], pa.binary())}),
        ):
            delivery = await producer.send_columns("t", empty)
            assert delivery.is_done
            assert len(await delivery.wait()) == 0


REFUSED = {
    "no table": ([b"v"], TypeError, "pyarrow"),
    "no value": (pa.table({"key": [b"k"]}), ValueError, "'value'"),
    "unknown": (pa.table({"value": [b"v"], "offset": [1]}), ValueError, "'offset'"),
    "twice": (pa.Table.from_arrays([pa.array([b"v"])] * 2, ["value", "value"]), ValueError, "twice"),
    "numbers": (pa.table({"value": [1]}), TypeError, "int64"),
    "time": (pa.table({"value": [b"v"], "timestamp": ["now"]}), TypeError, "timestamp"),
    "late": (pa.table({"value": [b"v"] * 3, "timestamp": [1, 2, MAX_TIMESTAMP_MS + 1]}), ValueError, "row 2"),
    "seconds": (
        pa.table({"value": [b"v"], "timestamp": pa.array([2**62], pa.timestamp("s"))}),
        ValueError,
        "timestamp",
    ),
    "negative": (pa.table({"value": [b"v"] * 2, "partition": [0, -1]}), ValueError, "row 1"),
    "no partition": (pa.table({"value": [b"v"] * 2, "partition": [0, 7]}), KafkaError, "t-7"),
    "headers": (
        pa.table({"value": [b"v"], "headers": pa.array([[{"key": None, "value": b"1"}]], HEADERS)}),
        ValueError,
        "headers",
    ),
    "headers type": (pa.table({"value": [b"v"], "headers": ["a=1"]}), TypeError, "headers"),
    "large headers": (
        pa.table({"value": [b"v"], "headers": pa.array([[{"key": "h", "value": b"1" * 2000}]], HEADERS)}),
        KafkaError,
        "row 0 ",
    ),
    "too large": (
        pa.Table.from_batches(
            [pa.record_batch({"value": [b"v"] * 9}), pa.record_batch({"value": [b"v", b"v" * 2000]})]
        ),
        KafkaError,
        "row 10 ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_table_that_cannot_be_sent_is_refused_as_a_whole(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, case: str
) -> None:
    table, kind, message = REFUSED[case]
    async with scripted.broker(1), connect() as cluster, produce(cluster, max_request_size=1500) as producer:
        with trio.fail_after(DEADLINE_S), pytest.raises(kind, match=message):
            await producer.send_columns("t", table)
        await producer.send_columns("t", pa.table({"value": [b"good"]}))
        await producer.flush()
    assert values(scripted) == [b"good"]


async def test_a_producer_with_a_partitioner_takes_no_row_without_a_partition(
    three: ScriptedCluster, connect: OpenCluster
) -> None:
    """It would go where the partitioner of the program would not have it."""

    class Last:
        def partition(self, _topic: str, _key: Any, _value: Any, partitions: int, _led: Any) -> int:
            return partitions - 1

    config = ProducerConfig()
    async with (
        three.broker(1),
        connect() as cluster,
        open_producer(cluster, config, clock=lambda: NOW_MS, rng=Random(1), partitioner=Last()) as producer,
    ):
        for columns in ({}, {"partition": pa.array([2, None], pa.int32())}):
            with trio.fail_after(DEADLINE_S), pytest.raises(ValueError, match="partitioner"):
                await producer.send_columns("u", pa.table({"value": numbers(2), **columns}))
        await producer.send_columns("u", pa.table({"value": numbers(2), "partition": [2, 1]}))
        await producer.flush()
    assert (values(three, U[2]), values(three, U[1])) == ([b"0"], [b"1"])


async def test_a_table_larger_than_the_memory_waits_for_it(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    table = pa.table({"value": [b"%05d" % number * 20 for number in range(5000)]})
    async with (
        scripted.broker(1),
        connect() as cluster,
        produce(cluster, batch_size=2000, buffer_memory=20_000) as producer,
    ):
        delivery = await producer.send_columns("t", table)
        with trio.fail_after(DEADLINE_S):
            await delivery.wait()
    assert values(scripted) == table["value"].to_pylist()


async def test_headers_larger_than_the_memory_wait_for_it(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    headers = [[{"key": "h", "value": b"%03d" % number * 300}] for number in range(100)]
    table = pa.table({"value": numbers(100), "headers": pa.array(headers, HEADERS)})
    async with (
        scripted.broker(1),
        connect() as cluster,
        produce(cluster, batch_size=2000, buffer_memory=10_000) as producer,
    ):
        delivery = await producer.send_columns("t", table)
        with trio.fail_after(DEADLINE_S):
            await delivery.wait()
    found = [record.headers for record in scripted.partition(T0).records()]
    assert found == [(("h", b"%03d" % number * 300),) for number in range(100)]


async def test_memory_that_stays_full_says_how_many_rows_were_accepted(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    table = pa.table({"value": [b"%05d" % number * 20 for number in range(1000)]})
    async with (
        scripted.broker(1),
        connect() as cluster,
        produce(cluster, batch_size=2000, buffer_memory=20_000, max_block_ms=200) as producer,
    ):
        await cluster.topic("t")
        scripted.hold_produce = trio.Event()
        with trio.fail_after(DEADLINE_S), pytest.raises(ColumnsNotAcceptedError, match="accepted") as caught:
            await producer.send_columns("t", table)
        scripted.hold_produce.set()
        with trio.fail_after(DEADLINE_S):
            places = await caught.value.delivery.wait()
    accepted = caught.value.accepted_rows
    assert 0 < accepted < 1000
    assert places.column("offset").to_pylist() == [*range(accepted), *[None] * (1000 - accepted)]
    assert values(scripted) == table["value"].to_pylist()[:accepted]


@pytest.mark.parametrize("is_closed", [True, False])
async def test_a_topic_or_producer_that_is_gone_after_the_first_rows_says_how_many_were_accepted(
    three: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, is_closed: bool
) -> None:
    """A program that hears of no accepted rows would send them again."""
    table = pa.table({"value": [b"%05d" % n * 20 for n in range(600)], "partition": [0] * 300 + [2] * 300})
    caught: list[ColumnsNotAcceptedError] = []
    async with (
        three.broker(1),
        connect(request_timeout_ms=1000) as cluster,
        produce(cluster, batch_size=2000, buffer_memory=20_000) as producer,
        trio.open_nursery() as nursery,
    ):
        await cluster.topic("u")
        three.hold_produce = trio.Event()

        async def send() -> None:
            with pytest.raises(ColumnsNotAcceptedError, match="accepted") as error:
                await producer.send_columns("u", table)
            caught.append(error.value)

        with trio.fail_after(DEADLINE_S):
            nursery.start_soon(send)
            while not three.produced_requests:
                await trio.lowlevel.checkpoint()
            if is_closed:
                assert await producer.aclose(0)
            else:
                log = three.partition(U[0])
                three.add_topic("u", [1])
                three.topics["u"][0] = log
                await cluster.refresh(timeout_s=DEADLINE_S)
            three.hold_produce.set()
            while not caught:
                await trio.lowlevel.checkpoint()
            accepted, places = caught[0].accepted_rows, caught[0].delivery.places
            if is_closed:
                assert 0 < accepted < 300
                assert len(caught[0].delivery.failures) > 1
            else:
                await caught[0].delivery.wait()
                assert 200 < accepted <= 300
                assert places().column("offset").to_pylist() == [*range(accepted), *[None] * (600 - accepted)]
                assert values(three, U[0]) == table["value"].to_pylist()[:accepted]


async def test_rows_that_were_not_delivered_are_named_with_the_reason(
    three: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    table = pa.table({"value": numbers(90), "partition": [number % 3 for number in range(90)]})
    three.partition(U[1]).leader = BrokerId(2)
    async with three.broker(1), connect() as cluster, produce(cluster, delivery_timeout_ms=500) as producer:
        delivery = await producer.send_columns("u", table)
        with trio.fail_after(DEADLINE_S), pytest.raises(DeliveryError):
            await delivery.wait()
        places = delivery.places().to_pylist()
        with pytest.raises(DeliveryError):
            await producer.flush()
    ((rows, error),) = delivery.failures
    assert rows.tolist() == list(range(1, 90, 3))
    assert error.topic_partition == U[1]
    assert [place["partition"] for place in places] == [None if n % 3 == 1 else n % 3 for n in range(90)]
