"""Lists of records, and sending synchronously, to a scripted cluster."""

from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.producer.batches import DeliveryError, RecordMetadata
from pipeline.client.producer.delivery import PartlyAcceptedError
from pipeline.client.producer.partitioner import partition_for_key
from pipeline.errors import DeadlineExceededError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.record import iterate_records
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import NOW_MS, OpenCluster, OpenProducer
from tests.unit.client.producer.conftest import DEADLINE_S, T0, values


@given(
    st.lists(st.none() | st.binary(max_size=300), max_size=60),
    st.none() | st.binary(max_size=20),
    st.sampled_from([(), (("a", b"1"), ("b", None))]),
    st.integers(100, 2000),
)
def test_many_records_are_built_as_one_by_one(values: Any, key: bytes | None, headers: Any, max_bytes: int) -> None:
    together, single = BatchBuilder(Codec.NONE, max_bytes), BatchBuilder(Codec.NONE, max_bytes)
    for builder in (together, single):
        builder.append(b"first", b"record", [("c", b"")], 5)
    end = together.extend(key, values, 0, headers, 9)
    fitting = 0
    while fitting < len(values) and single.append(key, values[fitting], headers, 9):
        fitting += 1
    assert end == fitting
    assert (together.record_count, together.size_bytes) == (single.record_count, single.size_bytes)
    assert list(iterate_records(together.build())) == list(iterate_records(single.build()))


def test_the_batch_may_be_bounded_more_closely() -> None:
    builder = BatchBuilder(Codec.NONE, 10_000)
    assert builder.extend(None, [b"x" * 100] * 9, 0, (), 5, 400) == 3
    assert builder.extend(None, [b"x" * 100] * 9, 3, (), 5, 400) == 3
    assert builder.extend(None, [], 0, (), 5) == 0
    assert builder.extend(None, [b"x" * 100] * 9, 3, (), 6) == 9
    assert [record.timestamp_ms for record in iterate_records(builder.build())] == [5, 5, 5, 6, 6, 6, 6, 6, 6]


@pytest.mark.parametrize("bad", ["text", 5, memoryview(b"abcdefgh").cast("i")])
def test_a_value_that_is_refused_leaves_those_before_it(bad: Any) -> None:
    builder = BatchBuilder(Codec.NONE, 10_000)
    with pytest.raises(TypeError):
        builder.extend(None, [b"0", b"1", bad, b"3"], 0, (), 5)
    builder.append(None, b"4", (), 5)
    assert [record.value for record in iterate_records(builder.build())] == [b"0", b"1", b"4"]


@pytest.mark.parametrize("key", [None, b"k"])
async def test_a_list_arrives_in_order(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, key: bytes | None
) -> None:
    data = [b"%d" % number for number in range(500)]
    async with scripted.broker(1), connect() as cluster, produce(cluster, batch_size=700) as producer:
        await producer.send("t", b"before")
        deliveries = await producer.send_many("t", iter(data), key, headers=[("h", b"")], timestamp_ms=7)
        await producer.send("t", b"after")
        found = await deliveries.wait()
        assert len(deliveries) == len(found) == 500
        assert deliveries.is_done
        assert found == [RecordMetadata(topic_partition=T0, offset=1 + n, timestamp_ms=7) for n in range(500)]
        assert [await delivery.wait() for delivery in deliveries] == found
    assert values(scripted) == [b"before", *data, b"after"]
    records = scripted.partition(T0).records()[1:-1]
    assert {(record.key, record.headers, record.timestamp_ms) for record in records} == {(key, (("h", b""),), 7)}
    assert len(scripted.partition(T0).batches) > 10


async def test_lists_go_where_single_records_go(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    scripted.add_topic("wide", [1] * 4)
    keys = [None if number % 5 == 0 else b"%d" % number for number in range(40)]
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        found = await (await producer.send_many("wide", [b"v"] * 40, keys=keys)).wait()
        for key, metadata in zip(keys, found, strict=True):
            if key is not None:
                assert metadata.topic_partition.partition == partition_for_key(key, 4)
        same = await (await producer.send_many("wide", [b"v"] * 9, b"one key")).wait()
        assert {each.topic_partition.partition for each in same} == {partition_for_key(b"one key", 4)}
        given_one = await (await producer.send_many("wide", [b"v"] * 9, b"one key", partition=2)).wait()
        assert {each.topic_partition for each in given_one} == {TopicPartition("wide", 2)}
        with pytest.raises(ValueError, match="1 keys for 2 values"):
            await producer.send_many("wide", [b"v"] * 2, keys=[b"k"])
        with pytest.raises(KafkaError, match="wide-4"):
            await producer.send_many("wide", [b"v"], partition=4)
        assert await (await producer.send_many("wide", [])).wait() == []


async def test_lists_without_key_fill_all_partitions(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    scripted.add_topic("wide", [1] * 4)
    async with scripted.broker(1), connect() as cluster, produce(cluster, batch_size=1000) as producer:
        await producer.send_many("wide", [b"x" * 100] * 400)
    counts = [[header.record_count for header, _ in part.batches] for part in scripted.topics["wide"].values()]
    assert sum(map(sum, counts)) == 400
    assert all(part and min(part[:-1], default=8) == 8 for part in counts)


async def test_a_list_may_be_larger_than_the_memory(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    data = [b"%d " % number + b"x" * 50 for number in range(300)]
    async with (
        scripted.broker(1),
        connect() as cluster,
        produce(cluster, batch_size=500, buffer_memory=1000) as producer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(producer.send_many, "t", data[:150])
        nursery.start_soon(producer.send_many, "t", data[150:])
        with trio.fail_after(DEADLINE_S):
            while len(values(scripted)) < 300:
                assert producer._accumulator.used_bytes <= 1000
                await scripted.appended.wait()
    assert sorted(values(scripted)) == sorted(data)
    assert [value for value in values(scripted) if value in data[:150]] == data[:150]


async def test_a_list_whose_end_finds_no_memory_has_its_beginning_sent(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    data = [b"%d " % number + b"x" * 50 for number in range(100)]
    settings = {"batch_size": 500, "buffer_memory": 1500, "max_block_ms": 100}
    async with scripted.broker(1), connect() as cluster, produce(cluster, **settings) as producer:
        await cluster.topic("t")
        scripted.hold_produce = trio.Event()
        with pytest.raises(PartlyAcceptedError, match=r"records were accepted, and then: .*max\.block\.ms") as caught:
            await producer.send_many("t", data)
        assert isinstance(caught.value.__cause__, DeadlineExceededError)
        scripted.hold_produce.set()
        found = await caught.value.accepted.wait()
    assert 0 < len(found) < 100
    assert values(scripted) == data[: len(found)]


async def test_a_list_with_a_record_that_can_never_fit_sends_nothing(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster, max_request_size=2000) as producer:
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await producer.send_many("t", [b"x", b"x" * 2000])
        with pytest.raises(TypeError):
            await producer.send_many("t", [b"x", 5])
    assert values(scripted) == []


async def test_windows_bound_batches_of_lists(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster, window_ms=1000) as producer:
        for timestamp_ms in (0, 999, 1000):
            await producer.send_many("t", [b"x"] * 3, timestamp_ms=timestamp_ms)
    windows = [header.base_timestamp // 1000 for header, _ in scripted.partition(T0).batches]
    assert windows == [header.max_timestamp // 1000 for header, _ in scripted.partition(T0).batches]
    assert sum(header.record_count for header, _ in scripted.partition(T0).batches) == 9


async def test_send_and_wait_does_not_linger_and_takes_others_along(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, autojump_clock: trio.testing.MockClock
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster, linger_ms=100_000) as producer:
        await producer.send("t", b"before")
        began = trio.current_time()
        found = await producer.send_and_wait("t", b"now", key=b"k", headers=[("h", None)])
        assert trio.current_time() - began < 50
        assert found == RecordMetadata(topic_partition=T0, offset=1, timestamp_ms=NOW_MS)
        scripted.produce_script.append(ErrorCode.MESSAGE_TOO_LARGE)
        with pytest.raises(DeliveryError, match="MESSAGE_TOO_LARGE"):
            await producer.send_and_wait("t", b"refused")
        with pytest.raises(DeliveryError):
            await producer.flush()
    assert values(scripted) == [b"before", b"now"]


async def test_the_level_of_compression_is_that_of_the_settings(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    data = [b"record %d of many, %d" % (number, number * number) for number in range(1000)]
    async with scripted.broker(1), connect() as cluster:
        for level in (-50, 19):
            async with produce(cluster, compression=Codec.ZSTD, compression_level=level, linger_ms=60_000) as producer:
                await producer.send_many("t", data)
    fast, small = (header.size_bytes for header, _ in scripted.partition(T0).batches)
    assert small < fast
    assert values(scripted) == data * 2
