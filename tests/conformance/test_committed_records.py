"""Transactions of Apache Kafka: our readers of committed records see what confluent-kafka's see."""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from random import Random
from typing import Any

import pytest
import trio
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, IsolationLevel
from pipeline.client.group.config import GroupConfig
from pipeline.client.group.group_consumer import open_group_consumer
from pipeline.client.streams.stream import MessageStream
from pipeline.settings import parse_addresses

TOPIC = "committed-records"
DEADLINE_S = 180
QUIET = {"log_level": 0}
WRITERS = 3
STEPS = 60
Seen = list[tuple[int, bytes]]


def write(bootstrap: str) -> None:
    """Transactions of several producers, of which half abort; at the end one is open, with records behind its first."""
    random = Random(98)
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(DEADLINE_S)
    writers = []
    for number in range(WRITERS):
        settings: Any = {"bootstrap.servers": bootstrap, "transactional.id": f"writer-{number}", **QUIET}
        writers.append(Producer(settings))
        writers[-1].init_transactions(DEADLINE_S)
    in_transaction = dict.fromkeys(range(WRITERS), False)
    for step in range(STEPS):
        number = random.randrange(WRITERS)
        writer = writers[number]
        if not in_transaction[number]:
            writer.begin_transaction()
            in_transaction[number] = True
        for record in range(random.randint(1, 4)):
            writer.produce(TOPIC, b"%d-%d-%d" % (number, step, record), partition=0)
        assert writer.flush(DEADLINE_S) == 0
        if random.random() < 0.5:
            end = writer.commit_transaction if random.random() < 0.5 else writer.abort_transaction
            end(DEADLINE_S)
            in_transaction[number] = False
    for number, writer in enumerate(writers):
        if in_transaction[number]:
            writer.abort_transaction(DEADLINE_S)
    writers[0].begin_transaction()
    writers[0].produce(TOPIC, b"last", partition=0)
    writers[0].commit_transaction(DEADLINE_S)
    writers[1].begin_transaction()
    writers[1].produce(TOPIC, b"open", partition=0)
    assert writers[1].flush(DEADLINE_S) == 0


def read_by_confluent(bootstrap: str, level: str) -> Seen:
    """Offset and value of each record, up to `last` or `open`."""
    settings: Any = {"bootstrap.servers": bootstrap, "group.id": "other", "isolation.level": level, **QUIET}
    consumer = Consumer(settings)
    consumer.assign([ConfluentPartition(TOPIC, 0, OFFSET_BEGINNING)])
    seen: Seen = []
    while not seen or seen[-1][1] != (b"last" if level == "read_committed" else b"open"):
        message: Any = consumer.poll(DEADLINE_S)
        assert message is not None
        error: KafkaError | None = message.error()
        assert error is None or error.retriable(), error
        if error is None:
            seen.append((message.offset(), message.value()))
    consumer.close()
    return seen


async def by_records(stream: MessageStream) -> AsyncGenerator[tuple[int, bytes]]:
    async for record in stream:
        assert record.value is not None
        yield record.offset, record.value


async def by_columns(stream: MessageStream) -> AsyncGenerator[tuple[int, bytes]]:
    async for table in stream.columns(["offset", "value"]):
        rows: Iterator[Any] = zip(*(table.column(name).to_pylist() for name in ("offset", "value")), strict=True)
        for row in rows:
            yield row


Read = Callable[[MessageStream], AsyncGenerator[tuple[int, bytes]]]


async def read_by_group(bootstrap: str, read: Read) -> Seen:
    config = GroupConfig(
        group_id=f"committed-{read.__name__}",
        auto_offset_reset="earliest",  # type: ignore[arg-type]
        isolation_level=IsolationLevel.READ_COMMITTED,
    )
    seen: Seen = []
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster,
        open_group_consumer(cluster, config, rng=Random(1)) as group,
        AsyncExitStack() as stack,
    ):
        (stream,) = (await group.create_message_streams({TOPIC: 1}))[TOPIC]
        with trio.fail_after(DEADLINE_S):
            rows = await stack.enter_async_context(aclosing(read(stream)))
            async for row in rows:
                seen.append(row)
                if row[1] == b"last":
                    return seen
    raise AssertionError("the stream ended")


@pytest.mark.long
async def test_records_of_aborted_and_open_transactions_are_left_out(apache_kafka: str) -> None:
    await trio.to_thread.run_sync(write, apache_kafka)
    everything = await trio.to_thread.run_sync(read_by_confluent, apache_kafka, "read_uncommitted")
    committed = await trio.to_thread.run_sync(read_by_confluent, apache_kafka, "read_committed")
    assert STEPS < len(committed) < len(everything)
    assert await read_by_group(apache_kafka, by_records) == committed
    assert await read_by_group(apache_kafka, by_columns) == committed
