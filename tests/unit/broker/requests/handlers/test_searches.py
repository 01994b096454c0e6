"""ListOffsets by time of a running broker: bounded in memory and in turns, and in nobody's way."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from pipeline.broker.replication.partition import Partition
from pipeline.broker.requests.context import SEARCHERS
from pipeline.broker.requests.handlers import list_offsets
from pipeline.net.transport import connect
from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pipeline.records.batch import read_header, write_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.memory import OPENED_BATCHES
from pipeline.records.turns import Steps
from tests.support.bombs import batch_of, bomb
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Broker, Start, batch


def asked(partitions: int = 1) -> ListOffsetsRequest:
    of_topic = [ListOffsetsPartition(partition_index=number, timestamp=1) for number in range(partitions)]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="clicks", partitions=of_topic)])


async def search(broker: Broker, lane: str = "") -> Any:
    response = await broker.ask(asked(), lane=lane, timeout_s=4 * TIMEOUT_S)
    return response.topics[0].partitions


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(TIMEOUT_S):
        while not is_so():
            await trio.sleep(0.01)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> "Held":
    return Held(monkeypatch)


class Held:
    """Searches that go on when they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = 0
        self.turns = threading.Semaphore(0)
        find = list_offsets.find_timestamp

        def slow(partition: Partition, timestamp: int | None) -> Steps[Any]:
            self.started += 1
            assert self.turns.acquire(timeout=4 * TIMEOUT_S)
            return (yield from find(partition, timestamp))

        monkeypatch.setattr(list_offsets, "find_timestamp", slow)


async def test_searches_in_bombs_stay_within_the_memory_for_opened_batches(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OPENED_BATCHES, "max_held_bytes", 0)  # other tests have opened batches in this process
    async with start(opened_batches_max_bytes=32 << 20) as broker:
        await broker.create("clicks", message_timestamp_type="CreateTime")
        for number in range(2):
            assert (await broker.produce("clicks", bomb(Codec.ZSTD, 200 << 20, NOW_MS + number))).error_code == 0
        found = []
        async with trio.open_nursery() as nursery:

            async def ask(lane: str) -> None:
                found.append([(part.error_code, part.offset) for part in await search(broker, lane)])

            for number in range(8):
                nursery.start_soon(ask, f"enemy {number}")
        assert found == [[(ErrorCode.NONE, 0)]] * 8
        assert OPENED_BATCHES.held_bytes == 0
        assert OPENED_BATCHES.max_held_bytes <= 128 << 20


async def test_slow_searches_hold_up_no_flush(start: Start, held: Held) -> None:
    async with start() as broker, trio.open_nursery() as nursery:
        await broker.create("clicks", flush_messages="1")
        await broker.produce("clicks", batch(b"a"))
        for number in range(60):
            nursery.start_soon(lambda lane: search(broker, lane), f"slow {number}")
        await until(lambda: held.started == SEARCHERS)
        assert (await broker.produce("clicks", batch(b"b"))).error_code == ErrorCode.NONE
        assert held.started == SEARCHERS
        held.turns.release(60)


@pytest.mark.long
async def test_searches_end_when_their_client_leaves(start: Start, held: Held) -> None:
    partitions = 1000
    async with start() as broker:
        await broker.create("clicks", partitions)

        def connections() -> float:
            name = "kafka_server_socket_server_metrics_connection_count"
            return broker.metrics.get_sample_value(name) or 0

        before = connections()
        transport = await connect(broker.address)
        await transport.send(ClientConnection("leaver").encode_request(asked(partitions), 4)[1])
        await until(lambda: held.started == 1)
        transport.close()
        with trio.fail_after(TIMEOUT_S):
            while connections() != before:
                held.turns.release()
                await trio.sleep(0.01)
        assert held.started < partitions


async def test_a_request_is_searched_for_so_long_and_no_longer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_offsets, "MAX_SEARCH_S", -1)
    async with start() as broker:
        await broker.create("clicks")
        assert [part.error_code for part in await search(broker)] == [ErrorCode.REQUEST_TIMED_OUT]


async def test_a_record_of_a_time_after_all_times_is_found_at_the_base_of_its_batch(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks")
        sound = batch(b"value")
        await broker.produce("clicks", sound)
        header = read_header(sound)
        payload = b"\x0e\0\2\0\1\0\0\0"
        late = header._replace(base_timestamp=2**63 - 1, max_timestamp=NOW_MS + 1)
        await broker.produce("clicks", batch_of(payload, late, Codec.NONE))
        of_topic = [ListOffsetsPartition(partition_index=0, timestamp=NOW_MS + 1)]
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="clicks", partitions=of_topic)])
        (found,) = (await broker.ask(request)).topics[0].partitions
        assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.NONE, 1, NOW_MS + 1)


def lying(records: int) -> bytearray:
    """A batch whose header claims a newer record than it has."""
    builder = BatchBuilder(Codec.ZSTD, 1 << 30)
    for _ in range(records):
        assert builder.append(b"k", b"v", (), 1)
    made = builder.build()
    write_header(made, read_header(made)._replace(max_timestamp=NOW_MS))
    return made


@pytest.mark.long
async def test_endless_searches_hold_up_no_other_search_and_end_in_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_offsets, "MAX_SEARCH_S", 2)
    async with start() as broker:
        await broker.create("clicks")
        await broker.create("good")
        await broker.produce("good", batch(b"a"))
        large = lying(50_000)
        for _ in range(50):
            await broker.produce("clicks", large)
        ended: list[str] = []

        async def ask(topic: str, timestamp: int, lane: str) -> None:
            of_topic = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
            request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=of_topic)])
            response = await broker.ask(request, lane=lane, timeout_s=4 * TIMEOUT_S)
            ended.append(f"{topic} {response.topics[0].partitions[0].error_code}")

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(ask, "clicks", NOW_MS, f"enemy {number}")
            await until(lambda: OPENED_BATCHES.held_bytes > 0)
            nursery.start_soon(ask, "good", 1, "good")
        assert ended == ["good 0"] + [f"clicks {ErrorCode.REQUEST_TIMED_OUT}"] * 4
        assert OPENED_BATCHES.held_bytes == 0


async def test_an_endless_search_ends_with_its_client_and_with_the_broker(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks")
        large = lying(50_000)
        for _ in range(100):
            await broker.produce("clicks", large)
        of_topic = [ListOffsetsPartition(partition_index=0, timestamp=NOW_MS)]
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="clicks", partitions=of_topic)])
        transports = [await connect(broker.address) for _ in range(2)]
        for transport in transports:
            await transport.send(ClientConnection("leaver").encode_request(request, 4)[1])
        await until(lambda: OPENED_BATCHES.held_bytes > 0)
        transports[0].close()
        transports[1].close()
        begun = trio.current_time()
        await until(lambda: OPENED_BATCHES.held_bytes == 0)
        assert trio.current_time() - begun < list_offsets.MAX_SEARCH_S / 2
        last = await connect(broker.address)
        await last.send(ClientConnection("stayer").encode_request(request, 4)[1])
        await until(lambda: OPENED_BATCHES.held_bytes > 0)
        stopped = trio.current_time()
    last.close()
    assert trio.current_time() - stopped < list_offsets.MAX_SEARCH_S / 2
