"""Sums over ranges of a running broker: right, bounded, and in nobody's way."""

from itertools import pairwise
from pathlib import Path

import pytest
import trio

from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.api_versions import ApiVersionsRequest
from pipeline.protocol.messages.list_offsets import (
    LATEST,
    RANGE_SUMS_FEATURE,
    AskedRange,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    SummedRange,
)
from pipeline.records.batch import HEADER_SIZE, place_batch, read_header
from pipeline.records.batch_sums import RunningSums, SumKind
from pipeline.records.compression import Codec
from pipeline.records.contents import plain_sum_of
from pipeline.records.memory import OPENED_BATCHES
from tests.support.bombs import batch_of, bomb
from tests.support.broker_in_process import TIMEOUT_S, Broker, Start, batch
from tests.support.loop_steps import measured_steps

MOST = 2**63 - 1
LEAST = -(2**63)


async def ask(
    broker: Broker,
    start: int,
    end: int,
    *,
    topic: str = "clicks",
    partition: int = 0,
    epoch: int = -1,
    is_deep: bool = False,
    kind: int = SumKind.HEADERS,
) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(
        partition_index=partition,
        current_leader_epoch=epoch,
        timestamp=LATEST,
        range_sums=AskedRange(from_offset=start, up_to_offset=end, is_deep=is_deep, kind=kind),
    )
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    found: ListOffsetsPartitionResponse = (await broker.ask(request)).topics[0].partitions[0]
    return found


async def sums(
    broker: Broker, start: int, end: int, *, is_deep: bool = False, kind: int = SumKind.HEADERS
) -> SummedRange:
    found = await ask(broker, start, end, is_deep=is_deep, kind=kind)
    assert found.error_code == ErrorCode.NONE
    return found.range_sums


async def filled(broker: Broker, count: int = 10) -> None:
    await broker.create("clicks")
    for number in range(count):
        assert (await broker.produce("clicks", batch(b"a%d" % number, b"b"))).error_code == 0


async def test_a_broker_sums_the_batches_that_a_consumer_fetches(start: Start) -> None:
    async with start() as broker:
        await filled(broker)
        features = (await broker.ask(ApiVersionsRequest())).supported_features
        assert RANGE_SUMS_FEATURE in {feature.name for feature in features}
        records = (await broker.fetch("clicks", 0)).records
        assert isinstance(records, memoryview)
        data = bytes(records)
        running, position = RunningSums(), 0
        while position < len(data):
            header = read_header(data, position)
            running.add(data[position : position + HEADER_SIZE], header)
            position += header.size_bytes
        expected, found = running.total(), await sums(broker, 0, 20)
        assert (found.batches, found.records, found.size_bytes, found.digest) == (10, 20, len(data), expected.digest)
        assert (found.first_offset, found.last_offset, found.next_offset) == (0, 19, 20)
        assert (found.damage, found.damaged_batches, found.clean_offset) == (None, 0, 0)
        halves = [await sums(broker, start, end) for start, end in pairwise([0, 7, 20])]
        assert sum(half.digest for half in halves) % 2**63 == found.digest


async def test_a_broker_sums_frames_and_contents(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks")
        expected = {kind: RunningSums() for kind in SumKind}
        for number, codec in enumerate(Codec):
            plain = batch(b"a" * 1000, b"b")
            made = bytes(batch_of(bytes(plain[HEADER_SIZE:]), read_header(plain), codec))
            assert (await broker.produce("clicks", made)).error_code == 0
            header = place_batch(bytearray(made), 0, 2 * number, 0)
            expected[SumKind.FRAMES].add_frame(header)
            expected[SumKind.CONTENTS].add_contents(made[:HEADER_SIZE], header, plain_sum_of(made, header))
        for kind in (SumKind.FRAMES, SumKind.CONTENTS):
            found, total = await sums(broker, 0, 10, kind=kind), expected[kind].total()
            assert (found.batches, found.records, found.size_bytes) == (5, 10, total.size_bytes)
            assert (found.digest, found.damaged_batches) == (total.digest, 0)
        for unknown in (3, -1, 127):
            assert (await ask(broker, 0, 10, kind=unknown)).error_code == ErrorCode.INVALID_REQUEST


async def test_opening_large_batches_does_not_hold_the_event_loop(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks")
        for _ in range(4):
            assert (await broker.produce("clicks", bytes(bomb(Codec.ZSTD, 30 << 20, 1)))).error_code == 0
        with measured_steps() as steps, trio.fail_after(TIMEOUT_S):
            at = 0
            while at < 4:
                at = (await sums(broker, at, 4, kind=SumKind.CONTENTS)).next_offset
        assert steps.longest_s < 0.05
        assert OPENED_BATCHES.held_bytes == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "last", "code"),
    [
        (5, 4, ErrorCode.INVALID_REQUEST),
        (-1, 4, ErrorCode.INVALID_REQUEST),
        (LEAST, MOST, ErrorCode.INVALID_REQUEST),
        (MOST, LEAST, ErrorCode.INVALID_REQUEST),
        (0, -1, ErrorCode.INVALID_REQUEST),
        (0, 21, ErrorCode.OFFSET_OUT_OF_RANGE),
        (0, MOST, ErrorCode.OFFSET_OUT_OF_RANGE),
        (MOST, MOST, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
async def test_a_broker_refuses_a_range_that_its_log_does_not_have(
    start: Start, first: int, last: int, code: ErrorCode
) -> None:
    async with start() as broker:
        await filled(broker)
        refused = await ask(broker, first, last)
        assert (refused.error_code, refused.range_sums) == (code, SummedRange())
        assert (await sums(broker, 0, 20)).batches == 10


async def test_a_broker_refuses_ranges_of_partitions_that_it_does_not_lead(start: Start) -> None:
    async with start() as broker:
        await filled(broker)
        assert (await ask(broker, 0, 1, topic="nowhere")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await ask(broker, 0, 1, partition=9)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await ask(broker, 0, 1, partition=-1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await ask(broker, 0, 1, epoch=99)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_a_request_whose_time_is_over_gets_a_part_of_each_range(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.broker.requests.handlers.list_offsets.SLICE_S", 0.0)
    async with start() as broker:
        await filled(broker)
        at, batches, answers = 0, 0, 0
        while at < 20:
            part = await sums(broker, at, 20, is_deep=True)
            assert part.next_offset > at
            at, batches, answers = part.next_offset, batches + part.batches, answers + 1
        assert (batches, answers) == (10, 10)


async def test_a_deep_sum_finds_a_flipped_bit_on_the_disk(start: Start, tmp_path: Path) -> None:
    async with start() as broker:
        await filled(broker)
        before = await sums(broker, 0, 20)
        path = tmp_path / "broker-1" / "clicks-0" / f"{0:020}.log"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        assert await sums(broker, 0, 20) == before
        deep = await sums(broker, 0, 20, is_deep=True)
        assert (deep.damaged_batches, deep.damaged_offset, deep.digest) == (1, 18, before.digest)


@pytest.mark.long
async def test_many_ranges_in_one_request_share_its_time(start: Start) -> None:
    async with start() as broker:
        await filled(broker)
        part = ListOffsetsPartition(range_sums=AskedRange(from_offset=0, up_to_offset=20, is_deep=True))
        bad = ListOffsetsPartition(range_sums=AskedRange(from_offset=9, up_to_offset=LEAST))
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="clicks", partitions=[part] * 500 + [bad] * 500)])
        found = (await broker.ask(request)).topics[0].partitions
        assert len(found) == 1000
        many = ListOffsetsTopic(name="clicks", partitions=[part] * 500)
        answers: list[ListOffsetsPartitionResponse] = []

        async def hold(lane: str) -> None:
            response = await broker.ask(ListOffsetsRequest(topics=[many]), lane=lane)
            answers.extend(response.topics[0].partitions)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(hold, f"enemy {number}")
            assert (await broker.produce("clicks", batch(b"meanwhile"))).error_code == 0
        assert {(each.error_code, each.range_sums.next_offset > 0) for each in answers} == {(ErrorCode.NONE, True)}


@pytest.mark.long
async def test_a_sum_over_very_many_batches_does_not_hold_the_event_loop(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks")
        for _ in range(50):
            assert (await broker.produce("clicks", b"".join(batch(b"v") for _ in range(1000)))).error_code == 0
        at, batches = 0, 0
        with measured_steps() as steps, trio.fail_after(TIMEOUT_S):
            while at < 50_000:
                part = await sums(broker, at, 50_000)
                at, batches = part.next_offset, batches + part.batches
        assert batches == 50_000
        assert steps.longest_s < 0.05  # the whole sum takes four times as long
