"""Messages of consumers and of streams: decoded, and what happens to those that cannot be."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.client.cluster.config import Acks, ProducerConfig
from pipeline.client.consumer.consumer import Consumer
from pipeline.client.consumer.messages import DeadLetters, DecodedMessage, MessageDecodeError, RaiseErrors, SkipErrors
from pipeline.client.encoding.decoders import JsonDecoder, StrDecoder
from pipeline.client.encoding.encoders import JsonEncoder, StrEncoder
from pipeline.client.producer.producer import open_producer
from pipeline.client.registry.errors import SerializationError
from pipeline.client.streams.stream import MessageStream, TakenBack
from pipeline.client.sync.sync_producer import SyncProducer
from pipeline.errors import ConfigurationError, DeadlineExceededError, PipelineError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import place_batch, read_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import NOW_MS, OpenCluster, OpenConsumer, OpenProducer
from tests.unit.client.consumer.conftest import DEADLINE_S

U0, DEAD = TopicPartition("u", 0), TopicPartition("dead", 0)
GOOD, BAD = b'{"n": 1}', b"{not json"


class Reading:
    """Either kind of reader, and the offset from which its program would continue."""

    def __init__(self, reader: Consumer | MessageStream) -> None:
        self.messages: Callable[..., AsyncIterator[DecodedMessage]] = reader.messages
        self.reader = reader

    def continues_at(self, *, with_item_in_hand: bool = True) -> int:
        if isinstance(self.reader, Consumer):
            return self.reader.position(U0)
        return self.reader.consumed(with_item_in_hand=with_item_in_hand)[U0]


Open = Callable[..., AbstractAsyncContextManager[Reading]]


@pytest.fixture(params=["consumer", "stream"])
def reading(request: Any, scripted: ScriptedCluster, consume: OpenConsumer) -> Open:
    @asynccontextmanager
    async def open_reading(cluster: Any) -> AsyncIterator[Reading]:
        async with consume(cluster) as consumer:
            with trio.fail_after(DEADLINE_S):
                if request.param == "consumer":
                    consumer.assign({U0: 0})
                    yield Reading(consumer)
                else:
                    stream = MessageStream(consumer, lambda: True)
                    stream.give({U0: 0})
                    yield Reading(stream)

    return open_reading


def fill(scripted: ScriptedCluster, values: list[bytes | None], key: bytes | None = b"k", batch: int = 2) -> None:
    """Batches of two records, each with a header."""
    scripted.add_topic("u", [1])
    partition = scripted.partition(U0)
    for start in range(0, len(values), batch):
        builder = BatchBuilder(Codec.NONE, 1 << 20)
        for number, value in enumerate(values[start : start + batch], start):
            assert builder.append(key, value, (("h", b"x"),), NOW_MS + number)
        built = builder.build()
        place_batch(built, 0, partition.log_end_offset, partition.epoch)
        partition.batches.append((read_header(built), bytes(built)))


async def test_keys_and_values_are_decoded_and_the_rest_is_there(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open
) -> None:
    fill(scripted, [GOOD, None, b"[2]"], key="ü".encode())
    async with scripted.broker(1), connect() as cluster, reading(cluster) as opened:
        messages = opened.messages(key=StrDecoder(), value=JsonDecoder())
        first, tombstone, last = [await anext(messages) for _ in range(3)]
    assert first == DecodedMessage("u", 0, 0, NOW_MS, "ü", {"n": 1}, (("h", b"x"),))
    assert first.topic_partition == U0
    assert (tombstone.offset, tombstone.key, tombstone.value) == (1, "ü", None)
    assert (last.offset, last.timestamp_ms, last.value) == (2, NOW_MS + 2, [2])


async def test_without_decoders_keys_and_values_stay_bytes(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open
) -> None:
    fill(scripted, [BAD, None], key=None)
    async with scripted.broker(1), connect() as cluster, reading(cluster) as opened:
        messages = opened.messages()
        assert [((message := await anext(messages)).key, message.value) for _ in range(2)] == [
            (None, BAD),
            (None, None),
        ]
        with pytest.raises(ConfigurationError, match="decoder"):
            opened.messages(value=7)


@pytest.mark.parametrize("policy", [{}, {"on_error": RaiseErrors()}])
async def test_an_error_names_the_place_and_the_next_iteration_goes_on(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open, policy: Any
) -> None:
    fill(scripted, [GOOD, BAD, GOOD])
    async with scripted.broker(1), connect() as cluster, reading(cluster) as opened:
        messages = opened.messages(value=JsonDecoder(), **policy)
        await anext(messages)
        with pytest.raises(MessageDecodeError, match=r"u-0, offset 1: the value cannot be decoded: not JSON") as raised:
            await anext(messages)
        assert (raised.value.part, raised.value.record.offset, raised.value.record.value) == ("value", 1, BAD)
        assert isinstance(raised.value.cause, SerializationError)
        if isinstance(opened.reader, MessageStream):
            assert opened.continues_at(with_item_in_hand=False) == 1
        assert (await anext(messages)).offset == 2


async def test_the_key_is_named_if_the_key_is_bad(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open
) -> None:
    fill(scripted, [GOOD], key=b"\xff")
    async with scripted.broker(1), connect() as cluster, reading(cluster) as opened:
        with pytest.raises(MessageDecodeError, match="the key cannot be decoded: not UTF-8") as raised:
            await anext(opened.messages(key=StrDecoder(), value=JsonDecoder()))
        assert raised.value.part == "key"


async def test_a_programs_own_decoder_may_raise_anything(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open
) -> None:
    fill(scripted, [b"1", b"x", b"3"])
    skipped = SkipErrors()

    def number(data: bytes | None) -> int | None:
        return None if data is None else int(data)

    async with scripted.broker(1), connect() as cluster, reading(cluster) as opened:
        messages = opened.messages(value=number, on_error=skipped)
        assert [(await anext(messages)).value for _ in range(2)] == [1, 3]
    assert skipped.count == 1


async def test_bad_records_are_skipped_and_counted(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open
) -> None:
    fill(scripted, [BAD, GOOD, BAD, BAD, GOOD])
    heard: list[int] = []
    skipped = SkipErrors(listener=lambda error: heard.append(error.record.offset))
    async with scripted.broker(1), connect() as cluster, reading(cluster) as opened:
        messages = opened.messages(value=JsonDecoder(), on_error=skipped)
        assert [(await anext(messages)).offset for _ in range(2)] == [1, 4]
        assert opened.continues_at() == 5
    assert (skipped.count, heard) == (3, [0, 2, 3])


async def test_dead_letters_say_where_they_come_from(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open, produce: OpenProducer
) -> None:
    fill(scripted, [GOOD, BAD, GOOD])
    scripted.add_topic("dead", [1])
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer, reading(cluster) as opened:
        letters = DeadLetters(producer, "dead")
        messages = opened.messages(value=JsonDecoder(), on_error=letters)
        assert [(await anext(messages)).offset for _ in range(2)] == [0, 2]
        assert letters.count == 1
    (letter,) = scripted.partition(DEAD).records()
    assert (letter.key, letter.value, letter.timestamp_ms) == (b"k", BAD, NOW_MS + 1)
    own, *origin = letter.headers
    assert own == ("h", b"x")
    named = {name.removeprefix("__connect.errors."): value for name, value in origin}
    assert (named.pop("exception.message") or b"").startswith(b"not JSON")
    assert named == {
        "topic": b"u",
        "partition": b"0",
        "offset": b"1",
        "timestamp": str(NOW_MS + 1).encode(),
        "stage": b"VALUE_CONVERTER",
        "exception.class.name": b"json.decoder.JSONDecodeError",
    }


async def test_dead_letters_pass_by_the_encoders_of_the_producer(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open
) -> None:
    fill(scripted, [BAD, GOOD])
    scripted.add_topic("dead", [1])
    async with (
        scripted.broker(1),
        connect() as cluster,
        open_producer(
            cluster,
            ProducerConfig(),
            clock=lambda: NOW_MS,
            rng=Random(1),
            key_encoder=StrEncoder(),
            value_encoder=JsonEncoder(),
        ) as producer,
        reading(cluster) as opened,
    ):
        messages = opened.messages(value=JsonDecoder(), on_error=DeadLetters(producer, "dead"))
        assert (await anext(messages)).offset == 1
    (letter,) = scripted.partition(DEAD).records()
    assert (letter.key, letter.value) == (b"k", BAD)


def test_dead_letters_need_a_producer_whose_acknowledgement_can_be_awaited() -> None:
    with pytest.raises(ConfigurationError, match="not SyncProducer"):
        DeadLetters(object.__new__(SyncProducer), "dead")  # type: ignore[arg-type]


async def test_a_dead_letter_topic_that_is_away_stops_the_reader_and_loses_nothing(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open, produce: OpenProducer
) -> None:
    fill(scripted, [GOOD, BAD, BAD, GOOD])
    async with (
        scripted.broker(1),
        connect() as cluster,
        produce(cluster, max_block_ms=300) as producer,
        reading(cluster) as opened,
    ):
        letters = DeadLetters(producer, "dead")
        messages = opened.messages(value=JsonDecoder(), on_error=letters)
        await anext(messages)
        for _ in range(2):
            with pytest.raises((KafkaError, DeadlineExceededError)):
                await anext(messages)
            assert opened.continues_at() == 1
        assert letters.count == 0
        scripted.add_topic("dead", [1])
        assert (await anext(messages)).offset == 3
        assert letters.count == 2
    assert [dict(letter.headers)["__connect.errors.offset"] for letter in scripted.partition(DEAD).records()] == [
        b"1",
        b"2",
    ]


async def test_a_reader_that_is_cancelled_at_a_dead_letter_begins_with_it_again(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open, produce: OpenProducer
) -> None:
    fill(scripted, [BAD, GOOD])
    scripted.add_topic("dead", [1])
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer, reading(cluster) as opened:
        scripted.produce_script += [ErrorCode.NOT_ENOUGH_REPLICAS] * 10_000
        messages = opened.messages(value=JsonDecoder(), on_error=DeadLetters(producer, "dead"))
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(messages.__anext__)
                while not scripted.requests["ProduceRequest"]:
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        assert opened.continues_at() == 0
        scripted.produce_script.clear()
        assert (await anext(messages)).offset == 1
        assert opened.continues_at() == 2


class FailingRegistry:
    """A decoder that waits, and whose registry is away at first."""

    def __init__(self) -> None:
        self.answers: Iterator[Any] = iter([DeadlineExceededError("the registry does not answer", 1.0), "decoded"])

    def decode(self, topic: str, data: bytes | None, headers: Any) -> Any:
        raise trio.WouldBlock

    async def deserialize(self, data: bytes | None, headers: Any = ()) -> Any:
        await trio.lowlevel.checkpoint()
        answer = next(self.answers)
        if isinstance(answer, PipelineError):
            raise answer
        return answer


async def test_a_registry_that_is_away_is_no_bad_record(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open
) -> None:
    fill(scripted, [GOOD])
    skipped = SkipErrors()
    async with scripted.broker(1), connect() as cluster, reading(cluster) as opened:
        messages = opened.messages(value=FailingRegistry(), on_error=skipped)
        with pytest.raises(DeadlineExceededError):
            await anext(messages)
        assert opened.continues_at() == 0
        message = await anext(messages)
        assert (message.offset, message.value, skipped.count) == (0, "decoded", 0)


async def test_a_partition_taken_back_at_a_failed_dead_letter_is_not_consumed(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer
) -> None:
    """Another member gets the record, which has no dead letter yet."""
    fill(scripted, [GOOD, BAD, GOOD])
    asked, failing = trio.Event(), trio.Event()

    class Fails:
        async def handle(self, error: MessageDecodeError) -> None:
            asked.set()
            await failing.wait()
            raise DeadlineExceededError("no dead letter", 1.0)

    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        stream = MessageStream(consumer, lambda: True)
        stream.give({U0: 0})
        messages = stream.messages(value=JsonDecoder(), on_error=Fails())
        await anext(messages)
        given_back: list[TakenBack] = []

        async def take_back() -> None:
            given_back.append(await stream.take_back([U0], DEADLINE_S))

        async def read() -> None:
            with pytest.raises(DeadlineExceededError):
                await anext(messages)

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await asked.wait()
                nursery.start_soon(take_back)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert given_back == []
                failing.set()
    (back,) = given_back
    assert back.offsets == {U0: 1}


async def test_other_tasks_run_beside_a_reader_that_never_waits(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open
) -> None:
    """Such as heartbeats and commits, while the work on each record blocks."""
    fill(scripted, [GOOD] * 400, batch=400)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with scripted.broker(1), connect() as cluster, reading(cluster) as opened, trio.open_nursery() as nursery:
        messages = opened.messages()
        await anext(messages)
        nursery.start_soon(count_turns)
        before = turns
        for _ in range(399):
            await anext(messages)
            deadline = time.monotonic() + 0.0005
            while time.monotonic() < deadline:
                pass
        assert turns - before >= 5
        nursery.cancel_scope.cancel()


async def test_no_commit_of_the_program_includes_a_record_whose_dead_letter_is_on_its_way(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, produce: OpenProducer
) -> None:
    """Nor does the record count as consumed afterwards, if its dead letter fails."""
    fill(scripted, [GOOD, BAD, GOOD])
    scripted.add_topic("dead", [1])
    async with (
        scripted.broker(1),
        connect() as cluster,
        produce(cluster) as producer,
        consume(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        stream = MessageStream(consumer, lambda: True)
        stream.give({U0: 0})
        messages = stream.messages(value=JsonDecoder(), on_error=DeadLetters(producer, "dead"))
        await anext(messages)
        assert stream.consumed(with_item_in_hand=True) == {U0: 1}
        scripted.hold_produce = trio.Event()
        scripted.produce_script.append(ErrorCode.MESSAGE_TOO_LARGE)
        failures: list[Exception] = []

        async def read() -> None:
            with pytest.raises(PipelineError) as caught:
                await anext(messages)
            failures.append(caught.value)

        with trio.fail_after(DEADLINE_S):
            nursery.start_soon(read)
            while not scripted.requests["ProduceRequest"]:
                await trio.lowlevel.checkpoint()
            assert stream.consumed(with_item_in_hand=True) == {U0: 1}
            stream.counting_item_in_hand()()
            scripted.hold_produce.set()
            while not failures:
                await trio.lowlevel.checkpoint()
            assert (await anext(messages)).offset == 2
            assert len(await producer.flush(0)) == 1  # which the end of its block would raise
    (letter,) = scripted.partition(DEAD).records()
    assert dict(letter.headers)["__connect.errors.offset"] == b"1"


async def test_dead_letters_need_acknowledgements(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    settings = {"acks": Acks.NONE, "idempotence": False}
    async with scripted.broker(1), connect() as cluster, produce(cluster, **settings) as producer:
        with pytest.raises(ConfigurationError, match="acks"):
            DeadLetters(producer, "dead")


async def test_a_record_of_the_dead_letter_topic_becomes_no_dead_letter(
    scripted: ScriptedCluster, connect: OpenCluster, reading: Open, produce: OpenProducer
) -> None:
    fill(scripted, [BAD])
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer, reading(cluster) as opened:
        messages = opened.messages(value=JsonDecoder(), on_error=DeadLetters(producer, "u"))
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="come back for ever: u-0, offset 0"):
                await anext(messages)
    assert scripted.partition(U0).log_end_offset == 1
