"""A producer to a scripted cluster."""

from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.client.cluster.config import Acks
from pipeline.client.producer.batches import DeliveredBatch, DeliveryError, RecordMetadata
from pipeline.errors import DeadlineExceededError, NetworkError, ProtocolError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse
from pipeline.records.batch import iterate_headers
from pipeline.records.compression import Codec
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster, OpenProducer
from tests.unit.client.producer.conftest import DEADLINE_S, T0, values

SELDOM = {"retry_backoff_ms": 500, "retry_backoff_max_ms": 500}
"""For a clock that jumps, which takes a moment for each retry."""


async def test_records_arrive_in_order_and_deliveries_tell_where(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster, batch_size=300) as producer:
        deliveries = [await producer.send("t", b"%d" % number, timestamp_ms=5) for number in range(100)]
        await producer.flush()
        assert values(scripted) == [b"%d" % number for number in range(100)]
        found = [await delivery.wait() for delivery in deliveries]
        assert found == [RecordMetadata(topic_partition=T0, offset=n, timestamp_ms=5) for n in range(100)]
        assert len(scripted.partition(T0).batches) > 5


@pytest.mark.parametrize("codec", list(Codec))
async def test_keys_headers_and_timestamps_are_kept_by_each_codec(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, codec: Codec
) -> None:
    extra = (("audit.host", b"h"),)
    async with (
        scripted.broker(1),
        connect() as cluster,
        produce(cluster, compression=codec, record_headers=extra) as producer,
    ):
        await producer.send("t", b"v" * 100, key=b"k", headers=[("a", None)])
        await producer.send("t", None)
        await producer.flush()
    first, second = scripted.partition(T0).records()
    assert (first.key, first.value, first.headers) == (b"k", b"v" * 100, (("a", None), *extra))
    assert (second.key, second.value, second.headers) == (None, None, extra)
    assert first.timestamp_ms == 1_700_000_000_000
    assert scripted.partition(T0).batches[0][0].codec is codec


@pytest.mark.parametrize("fault", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT])
async def test_a_leader_that_gets_no_followers_is_looked_up_again(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, fault: ErrorCode
) -> None:
    """It may be one that does not reach ZooKeeper and has been replaced."""
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        await producer.send("t", b"first")
        await producer.flush()
        await cluster.refresh()
        before = scripted.requests["MetadataRequest"]
        scripted.produce_script.append(fault)
        await producer.send("t", b"second")
        await producer.flush()
        with trio.fail_after(DEADLINE_S):
            while scripted.requests["MetadataRequest"] == before:
                await trio.lowlevel.checkpoint()
    assert values(scripted) == [b"first", b"second"]


@pytest.mark.parametrize("fault", ["close", "close after", ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT])
async def test_a_produce_that_fails_once_is_retried_and_written_once(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, fault: ErrorCode | str
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster, batch_size=200) as producer:
        await producer.send("t", b"first")
        await producer.flush()
        scripted.produce_script.extend([fault, fault])
        for number in range(50):
            await producer.send("t", b"%d" % number)
        await producer.flush()
    assert values(scripted) == [b"first", *(b"%d" % number for number in range(50))]


async def test_a_refused_producer_id_is_replaced(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        await producer.send("t", b"one")
        await producer.flush()
        scripted.produce_script.append(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        await producer.send("t", b"two")
        await producer.flush()
    assert values(scripted) == [b"one", b"two"]
    ids = [header.producer_id for header, _ in scripted.partition(T0).batches]
    assert ids == [1000, 1001]


async def test_the_leader_moves(scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer) -> None:
    async with scripted.broker(1), scripted.broker(2), connect() as cluster, produce(cluster) as producer:
        await producer.send("t", b"one")
        await producer.flush()
        scripted.partition(T0).leader = BrokerId(2)
        scripted.partition(T0).epoch += 1
        await producer.send("t", b"two")
        await producer.flush()
    assert values(scripted) == [b"one", b"two"]


async def test_a_leader_that_has_moved_away_may_have_written_it(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, jumping_clock: trio.testing.MockClock
) -> None:
    async with (
        scripted.broker(1),
        connect(**SELDOM) as cluster,
        produce(cluster, delivery_timeout_ms=2000, linger_ms=0) as producer,
    ):
        scripted.produce_script.extend([ErrorCode.NOT_LEADER_OR_FOLLOWER] * 20_000)
        delivery = await producer.send("t", b"one")
        with pytest.raises(DeliveryError) as caught:
            await delivery.wait()
        assert caught.value.outcome_unknown
        scripted.produce_script.clear()
        await producer.send("t", b"two")
        with pytest.raises(DeliveryError):
            await producer.flush()
    assert values(scripted) == [b"two"]
    assert [(header.producer_id, header.base_sequence) for header, _ in scripted.partition(T0).batches] == [(1001, 0)]


async def test_a_broker_comes_back_within_the_delivery_timeout(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1):
        pass
    async with connect() as cluster, produce(cluster) as producer:
        async with scripted.broker(1):
            await producer.send("t", b"one")
            await producer.flush()
        delivery = await producer.send("t", b"two")
        async with scripted.broker(1):
            assert (await delivery.wait()).offset == 1


async def test_a_delivery_that_fails_says_what_how_old_and_why(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, jumping_clock: trio.testing.MockClock
) -> None:
    async with scripted.broker(1):
        pass
    async with connect(**SELDOM) as cluster, produce(cluster, delivery_timeout_ms=2000, linger_ms=0) as producer:
        async with scripted.broker(1):
            await producer.send("t", b"one")
            await producer.flush()
        delivery = await producer.send("t", b"two")
        with pytest.raises(DeliveryError, match=r"t-0: batch of 1 records not delivered, \d+ ms old") as caught:
            await delivery.wait()
        assert caught.value.topic_partition == T0
        assert caught.value.age_ms >= 2000
        assert isinstance(caught.value.last_error, NetworkError | DeadlineExceededError)
        with pytest.raises(DeliveryError):
            await producer.flush()
        await producer.flush()


async def test_a_fatal_refusal_fails_the_batch_at_once_and_the_next_goes_through(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        told = []
        scripted.produce_script.append(ErrorCode.MESSAGE_TOO_LARGE)
        await producer.send("t", b"one", callback=lambda found, error: told.append((found, error)))
        with pytest.raises(DeliveryError, match="MESSAGE_TOO_LARGE"):
            await producer.flush()
        assert isinstance(told[0][1], DeliveryError)
        delivery = await producer.send("t", b"two", callback=lambda found, error: told.append((found, error)))
        await producer.flush()
        assert told[1] == (await delivery.wait(), None)
    assert values(scripted) == [b"two"]
    assert [header.base_sequence for header, _ in scripted.partition(T0).batches] == [0]


async def test_memory_is_bounded_and_send_waits_for_it(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with (
        scripted.broker(1),
        connect() as cluster,
        produce(cluster, batch_size=1000, buffer_memory=3000, max_block_ms=200) as producer,
    ):
        await cluster.topic("t")
        scripted.hold_produce = trio.Event()
        sent = 0
        with pytest.raises(DeadlineExceededError, match=r"max\.block\.ms.*buffer\.memory"):
            while True:
                await producer.send("t", b"x" * 100)
                sent += 1
        assert 15 < sent < 30
        scripted.hold_produce.set()
        await producer.send("t", b"last")
    assert len(values(scripted)) == sent + 1


async def test_senders_get_memory_in_turn(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster:
        async with produce(cluster, batch_size=500, buffer_memory=1000) as producer, trio.open_nursery() as nursery:

            async def send_many(name: int) -> None:
                for number in range(30):
                    await producer.send("t", b"%d %d" % (name, number))

            for name in range(5):
                nursery.start_soon(send_many, name)
        for name in range(5):
            mine = [int(value.split()[1]) for value in values(scripted) if value.startswith(b"%d " % name)]
            assert mine == list(range(30))


async def test_a_record_that_can_never_fit_is_refused(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster, max_request_size=2000) as producer:
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE") as caught:
            await producer.send("t", b"x" * 2000)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


async def test_an_unknown_topic_or_partition_is_said_within_max_block(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster, max_block_ms=100) as producer:
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION: topic nowhere"):
            await producer.send("nowhere", b"x")
        with pytest.raises(KafkaError, match="t-7"):
            await producer.send("t", b"x", partition=7)


async def test_keys_choose_partitions_and_records_without_key_change_with_the_batch(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    scripted.add_topic("wide", [1] * 4)
    async with scripted.broker(1), connect() as cluster, produce(cluster, batch_size=500) as producer:
        by_key: dict[Any, Any] = {}
        for number in range(50):
            key = b"key %d" % (number % 10)
            found = await (await producer.send("wide", b"x", key=key)).wait()
            assert by_key.setdefault(key, found.topic_partition) == found.topic_partition
        assert len(set(by_key.values())) > 1
        for partition in scripted.topics["wide"].values():
            partition.batches.clear()
        for _ in range(400):
            await producer.send("wide", b"x" * 20)
    counts = [[header.record_count for header, _ in part.batches] for part in scripted.topics["wide"].values()]
    assert all(sum(part) > 20 for part in counts)
    assert sum(map(len, counts)) < 60


async def test_partitions_that_were_added_are_found(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        await producer.send("t", b"x", partition=0)
        scripted.topics["t"][1] = type(scripted.partition(T0))(BrokerId(1))
        await producer.send("t", b"y", partition=1)
        await producer.flush()
    assert values(scripted, TopicPartition("t", 1)) == [b"y"]


async def test_a_topic_recreated_with_fewer_partitions_takes_what_is_sent_next(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, jumping_clock: trio.testing.MockClock
) -> None:
    scripted.add_topic("wide", [-1] * 7 + [1])
    settings = {"linger_ms": 10_000, "delivery_timeout_ms": 60_000}
    async with scripted.broker(1), connect(**SELDOM) as cluster, produce(cluster, **settings) as producer:
        old = await producer.send("wide", b"old")
        scripted.add_topic("wide", [1, 1])
        await cluster.refresh()
        await (await producer.send("wide", b"new")).wait()
        with pytest.raises(DeliveryError, match="wide-7"):
            await old.wait()
        with pytest.raises(DeliveryError):
            await producer.flush()
    assert [record.value for part in scripted.topics["wide"].values() for record in part.records()] == [b"new"]


@pytest.mark.parametrize("key", [None, b"key"])
async def test_a_topic_without_partitions_is_waited_for(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, key: bytes | None
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer, trio.open_nursery() as nursery:
        await (await producer.send("t", b"one", key=key)).wait()
        partitions, scripted.topics["t"] = scripted.topics["t"], {}
        await cluster.refresh()
        asked = scripted.requests["MetadataRequest"]
        nursery.start_soon(producer.send, "t", b"two", key)
        with trio.fail_after(DEADLINE_S):
            while scripted.requests["MetadataRequest"] == asked:
                await trio.sleep(0.01)
        scripted.topics["t"] = partitions
    assert values(scripted) == [b"one", b"two"]


@pytest.mark.parametrize("key", [None, b"key"])
async def test_partition_numbers_with_gaps_are_no_fault_of_the_program(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, key: bytes | None
) -> None:
    async with scripted.broker(1), connect() as cluster:
        scripted.topics["t"] = {3: scripted.partition(T0)}
        with pytest.raises(DeliveryError, match=r"t-0: .*the leader of the partition is unknown"):
            async with produce(cluster, delivery_timeout_ms=200, linger_ms=0) as producer:
                await producer.send("t", b"x", key=key)


@pytest.mark.parametrize("acks", [Acks.NONE, Acks.LEADER])
async def test_records_with_weaker_acks_are_sent_without_a_producer_id(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, acks: Acks
) -> None:
    async with (
        scripted.broker(1),
        connect() as cluster,
        produce(cluster, acks=acks, idempotence=False) as producer,
    ):
        found = await (await producer.send("t", b"x")).wait()
        assert found.offset == (-1 if acks is Acks.NONE else 0)
        with trio.fail_after(DEADLINE_S):
            while not scripted.partition(T0).batches:
                await scripted.appended.wait()
    assert values(scripted) == [b"x"]
    assert scripted.partition(T0).batches[0][0].producer_id == -1


async def test_windows_bound_batches_and_listeners_hear_of_each(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    heard: list[DeliveredBatch] = []
    async with (
        scripted.broker(1),
        connect() as cluster,
        produce(cluster, window_ms=1000, linger_ms=10_000, on_delivered=heard.append) as producer,  # time ends no batch
    ):
        for timestamp_ms in (0, 999, 1000, 1500, 2000, 1999):
            await producer.send("t", b"x", timestamp_ms=timestamp_ms)
    stored = [header for header, _ in scripted.partition(T0).batches]
    assert [(h.base_timestamp, h.record_count) for h in stored] == [(0, 2), (1000, 2), (2000, 1), (1999, 1)]
    assert [batch.header for batch in heard] == stored
    assert [batch.size_bytes for batch in heard] == [header.size_bytes for header in stored]


async def test_faulty_callbacks_and_listeners_stop_nothing(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("mine")

    async with scripted.broker(1), connect() as cluster, produce(cluster, on_delivered=fail) as producer:
        await producer.send("t", b"x", callback=fail)
        await producer.flush()
    assert values(scripted) == [b"x"]


async def test_many_partitions_share_a_request_and_old_brokers_are_spoken_to(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    scripted.add_topic("wide", [1] * 20)
    async with (
        scripted.broker(1, versions={0: 7, 3: 4, 18: 2}),
        connect() as cluster,
        produce(cluster, linger_ms=10_000) as producer,  # only a flush sends
    ):
        await producer.send("wide", b"x", partition=0)
        await producer.flush()
        for partition in range(20):
            await producer.send("wide", b"x", partition=partition)
        await producer.flush()
    assert len(scripted.produced_requests) <= 3
    assert sum(len(part.records()) for part in scripted.topics["wide"].values()) == 21


async def test_no_batch_of_several_records_is_larger_than_a_request_may_be(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    """As in Kafka, where max.request.size also bounds batches: else brokers refuse a large batch.size as a whole."""
    settings = {"batch_size": 300_000, "max_request_size": 2000, "linger_ms": 600_000, "delivery_timeout_ms": 600_000}
    async with scripted.broker(1), connect() as cluster, produce(cluster, **settings) as producer:
        for number in range(50):
            await producer.send("t", b"%d" % number + b" " * 100)
        await producer.send_many("t", [b"%d" % number + b" " * 100 for number in range(50)])
        await producer.flush()
    assert len(values(scripted)) == 100
    sizes = [header.size_bytes for header, _ in scripted.partition(T0).batches]
    assert 1500 < max(sizes) <= 2000


async def test_sequences_are_gapless(scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster, batch_size=200, linger_ms=0) as producer:
        scripted.produce_script.extend(["close after", ErrorCode.NONE, "close", ErrorCode.NONE] * 3)
        for number in range(200):
            await producer.send("t", b"%d" % number)
    headers = [header for header, _ in scripted.partition(T0).batches]
    assert {header.producer_id for header in headers} == {1000}
    assert all(after.base_sequence == before.last_sequence + 1 for before, after in pairwise(headers))
    assert values(scripted) == [b"%d" % number for number in range(200)]
    assert list(iterate_headers(b"".join(data for _, data in scripted.partition(T0).batches)))


async def test_other_tasks_run_between_sends_that_never_wait(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        await producer.send("t", b"first")
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            for _ in range(2560):
                await producer.send("t", b"x")
            nursery.cancel_scope.cancel()
    assert turns >= 9


async def test_acks_0_follow_a_leader_that_moves(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    produce: OpenProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"acks": Acks.NONE, "idempotence": False, "linger_ms": 0}
    plain = scripted._append

    def append(broker: BrokerId, topic: str, data: PartitionProduceData) -> PartitionProduceResponse:
        answer = plain(broker, topic, data)
        if answer.error_code:
            raise ProtocolError("all that a broker can say to acks=0")
        return answer

    monkeypatch.setattr(scripted, "_append", append)
    async with scripted.broker(1), scripted.broker(2), connect() as cluster, produce(cluster, **settings) as producer:
        await producer.send("t", b"0")
        await producer.flush()
        scripted.partition(T0).leader = BrokerId(2)
        scripted.partition(T0).epoch += 1
        number = 0
        with trio.fail_after(DEADLINE_S):
            while len(values(scripted)) < 20:
                number += 1
                await producer.send("t", b"%d" % number)
                await producer.flush()
                await trio.sleep(0.01)
    assert values(scripted)[-1] == b"%d" % number
