"""Sums over ranges of a log."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from pipeline.log.config import LogConfig
from pipeline.log.gathered_batches import WHOLE_BYTES
from pipeline.log.range_sums import STEP_BATCHES, RangeSums, sum_range
from pipeline.log.unified_log import UnifiedLog
from pipeline.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    place_batch,
    read_header,
    write_header,
)
from pipeline.records.batch_sums import NO_BATCHES, BatchSums, RunningSums, SumKind
from pipeline.records.compression import PIECE_BYTES, Codec
from pipeline.records.memory import OPENED_BATCHES
from pipeline.records.recompression import MAX_RECOMPRESSED_BYTES
from tests.support.bombs import batch_of, bomb
from tests.unit.log.conftest import Batches, Opener


def summed(
    log: UnifiedLog,
    start: int,
    end: int,
    *,
    is_deep: bool = False,
    kind: SumKind = SumKind.HEADERS,
    is_over: Callable[[], bool] = lambda: False,
) -> RangeSums:
    steps = sum_range(log.snapshot, start, end, is_over, is_deep=is_deep, kind=kind)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: RangeSums = stop.value
            return found


def flip(log: UnifiedLog, number: int, position: int) -> None:
    """Change a bit of a batch in its file, at this position of the batch."""
    place = [(segment, place) for segment in log.snapshot.segments for place in segment.places()][number]
    segment, at = place[0], place[1].position + position
    (byte,) = segment.file.read_at(1, at)
    segment.file.write_at(bytes([byte ^ 1]), at)


@pytest.fixture
def log(open_log: Opener, batches: Batches, small_segments: LogConfig) -> UnifiedLog:
    """Batches of three records, in several segments, with a gap after the fifth."""
    log = open_log(small_segments)
    for number in range(20):
        batches.append_keeping(log, batches.make(3, base_offset=3 * number + 7 * (number > 4)))
    assert len(log.snapshot.segments) > 2
    return log


@pytest.mark.parametrize("kind", SumKind)
@pytest.mark.parametrize("is_deep", [False, True])
def test_sums_of_ranges_add_up_wherever_they_are_split(
    log: UnifiedLog, batches: Batches, is_deep: bool, kind: SumKind
) -> None:
    end = log.log_end_offset
    whole = summed(log, 0, end, is_deep=is_deep, kind=kind)
    headers = batches.read_all(log)
    assert whole.next_offset == end
    assert whole.damage is None
    assert (whole.sums.batches, whole.sums.records) == (20, 60)
    assert whole.sums.size_bytes == (kind is not SumKind.FRAMES) * sum(header.size_bytes for header in headers)
    assert (whole.sums.first_offset, whole.sums.last_offset) == (0, end - 1)
    for splits in ([0, 5, 16, 17, 30, end], range(end + 1), [0, 1, end - 1, end]):
        parts = [summed(log, start, stop, is_deep=is_deep, kind=kind).sums for start, stop in pairwise(splits)]
        assert sum(parts, NO_BATCHES) == whole.sums


def test_a_batch_belongs_to_the_range_that_holds_its_last_offset(log: UnifiedLog) -> None:
    assert summed(log, 2, 3).sums.batches == 1
    assert summed(log, 0, 2).sums == NO_BATCHES
    assert summed(log, 1, 5).sums.first_offset == 0
    assert summed(log, 15, 22).sums == NO_BATCHES  # the gap
    assert summed(log, 4, 4) == RangeSums(NO_BATCHES, 4)


def test_the_leader_epoch_does_not_count_and_every_other_byte_of_the_header_does(batches: Batches) -> None:
    def digest(batch: bytearray) -> BatchSums:
        sums = RunningSums()
        sums.add(memoryview(batch)[:HEADER_SIZE], batches.header(bytes(batch)))
        return sums.total()

    original = digest(batches.make(3))
    copy = batches.make(3)
    place_batch(copy, 0, 0, 77)
    assert digest(copy) == original
    place_batch(copy, 0, 1, 77)
    assert not digest(copy).is_equal_to(original)
    header = batches.header(bytes(batches.make(3)))
    for position in {*range(HEADER_SIZE)} - {*range(12, 16)}:
        changed = batches.make(3)
        changed[position] ^= 1
        sums = RunningSums()
        sums.add(memoryview(changed)[:HEADER_SIZE], header)
        assert sums.total().digest != original.digest, position


def test_a_scan_that_is_over_says_how_far_it_came_and_each_one_gets_on(log: UnifiedLog) -> None:
    end, start, parts = log.log_end_offset, 0, []
    while start < end:
        part = summed(log, start, end, is_deep=True, is_over=lambda: True)
        assert part.next_offset > start
        parts.append(part.sums)
        start = part.next_offset
    assert len(parts) == 20
    assert sum(parts, NO_BATCHES) == summed(log, 0, end, is_deep=True).sums


def test_a_shallow_scan_stops_after_some_batches(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    for _ in range(1200):
        batches.append(log, batches.make(1))
    first = summed(log, 0, 1200, is_over=lambda: True)
    assert 0 < first.next_offset < 1200
    rest = summed(log, first.next_offset, 1200)
    assert first.sums + rest.sums == summed(log, 0, 1200).sums


def test_batches_that_compaction_left_without_records_or_took_out_are_summed(
    open_log: Opener, batches: Batches
) -> None:
    log = open_log()
    for offset in (0, 8, 15):
        empty = batches.make(1, base_offset=offset)[:HEADER_SIZE]
        write_header(
            empty,
            batches.header(bytes(batches.make(4, base_offset=offset)))._replace(
                base_offset=offset, batch_length=HEADER_SIZE - LOG_OVERHEAD, record_count=0
            ),
        )
        batches.append_keeping(log, empty)
    found = summed(log, 0, 19, is_deep=True)
    assert (found.damage, found.sums.batches, found.sums.records, found.sums.damaged_batches) == (None, 3, 0, 0)


def test_only_a_deep_scan_finds_a_flipped_bit_of_the_records(log: UnifiedLog) -> None:
    before = summed(log, 0, log.log_end_offset)
    flip(log, 9, HEADER_SIZE + 5)
    assert summed(log, 0, log.log_end_offset) == before
    deep = summed(log, 0, log.log_end_offset, is_deep=True).sums
    assert deep.is_equal_to(before.sums)
    assert (deep.damaged_batches, deep.damaged_offset) == (1, 3 * 9 + 7)


def test_a_deep_scan_reads_large_batches_in_pieces(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    batches.append(log, batches.make(1, size=3 * PIECE_BYTES))
    steps = sum_range(log.snapshot, 0, 1, lambda: False, is_deep=True)
    assert [next(steps), next(steps), next(steps)] == [None] * 3
    assert summed(log, 0, 1, is_deep=True).sums.damaged_batches == 0
    flip(log, 0, 3 * PIECE_BYTES)
    assert summed(log, 0, 1, is_deep=True).sums.damaged_batches == 1


def in_codec(batch: bytes | bytearray, codec: Codec) -> bytearray:
    """A batch of the same records in another codec."""
    header = read_header(batch)
    return batch_of(bytes(batch[HEADER_SIZE:]), header, codec)


def test_contents_are_the_same_in_every_codec(open_log: Opener, batches: Batches) -> None:
    plain = batches.make(3, size=2 * PIECE_BYTES)
    found = {}
    for codec in Codec:
        log = open_log(below=codec.name)
        batches.append(log, in_codec(plain, codec))
        found[codec] = [summed(log, 0, 3, kind=kind).sums for kind in SumKind]
        assert [sums.damaged_batches for sums in found[codec]] == [0, 0, 0]
    assert len({sums[SumKind.HEADERS].digest for sums in found.values()}) == len(Codec)
    assert len({sums[SumKind.FRAMES] for sums in found.values()}) == 1
    assert len({sums[SumKind.CONTENTS] for sums in found.values()}) == 1
    assert found[Codec.NONE][SumKind.CONTENTS].size_bytes == len(plain)


@pytest.mark.parametrize("kind", [SumKind.FRAMES, SumKind.CONTENTS])
def test_every_field_that_recompression_keeps_counts(open_log: Opener, batches: Batches, kind: SumKind) -> None:
    original = batches.make(3)
    header = batches.header(bytes(original))
    changes = {
        "base_offset": 1,
        "attributes": TRANSACTIONAL,
        "last_offset_delta": 5,
        "base_timestamp": 7,
        "max_timestamp": 7,
        "producer_id": 7,
        "producer_epoch": 7,
        "base_sequence": 7,
        "record_count": 2,
    }
    digests = set()
    for number, (name, value) in enumerate([("partition_leader_epoch", 0), *changes.items()]):
        changed = bytearray(original)
        write_header(changed, header._replace(**{name: value}))
        log = open_log(below=str(number))
        batches.append_keeping(log, changed)
        digests.add(summed(log, 0, log.log_end_offset, kind=kind).sums.digest)
    assert len(digests) == len(changes) + 1


def test_only_contents_tell_records_apart(open_log: Opener, batches: Batches) -> None:
    first, second = batches.make(3), batches.make(3)
    second[-2] ^= 1
    write_header(second, batches.header(bytes(second)))
    sums = []
    for number, batch in enumerate((first, second)):
        log = open_log(below=str(number))
        batches.append(log, batch)
        sums.append([summed(log, 0, 3, kind=kind).sums for kind in SumKind])
    assert sums[0][SumKind.FRAMES] == sums[1][SumKind.FRAMES]
    assert sums[0][SumKind.CONTENTS].digest != sums[1][SumKind.CONTENTS].digest


@pytest.mark.parametrize("kind", ["no gzip", "bomb"])
def test_a_batch_that_cannot_be_opened_counts_with_its_header(open_log: Opener, batches: Batches, kind: str) -> None:
    closed = batches.make(3)
    if kind == "bomb":
        closed = bomb(Codec.GZIP, MAX_RECOMPRESSED_BYTES + (2 << 20), 1_700_000_000_000)
    else:
        write_header(closed, batches.header(bytes(closed))._replace(attributes=Codec.GZIP))
    log = open_log()
    batches.append_keeping(log, closed)
    end = log.log_end_offset
    found = summed(log, 0, end, kind=SumKind.CONTENTS)
    assert found.sums == summed(log, 0, end).sums
    flip(log, 0, len(closed) - 1)
    damaged = summed(log, 0, end, kind=SumKind.CONTENTS).sums
    assert (damaged.damaged_batches, damaged.digest) == (1, found.sums.digest)
    assert OPENED_BATCHES.held_bytes == 0


def test_a_large_compressed_batch_waits_for_memory(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    batches.append(log, bomb(Codec.ZSTD, 20 << 20, 1_700_000_000_000))
    with OPENED_BATCHES.ask(OPENED_BATCHES.capacity_bytes) as all_of_it:
        assert all_of_it.is_given()
        steps = sum_range(log.snapshot, 0, 1, lambda: False, kind=SumKind.CONTENTS)
        charge = next(steps)
        assert charge is not None
        assert not charge.is_given()
        steps.close()
    assert (OPENED_BATCHES.held_bytes, OPENED_BATCHES.waiting) == (0, 0)
    assert summed(log, 0, 1, kind=SumKind.CONTENTS).sums.size_bytes > 20 << 20


@pytest.mark.parametrize("position", [0, 8, 11, 16, 23])  # base offset, length, format, last offset delta
def test_a_scan_ends_before_a_header_that_cannot_be(log: UnifiedLog, position: int) -> None:
    sound = summed(log, 0, log.log_end_offset).sums
    flip(log, 9, position)
    found = summed(log, 0, log.log_end_offset)
    assert found.damage is not None
    assert "damaged" in found.damage
    assert found.next_offset <= 3 * 9 + 7 + 3
    assert found.sums.batches in (9, 10)
    assert not found.sums.is_equal_to(sound)


SIZES = [
    100,
    30_000,
    WHOLE_BYTES - 200,
    WHOLE_BYTES,
    WHOLE_BYTES + 1,
    2 * PIECE_BYTES,
    50_000,
    50_000,
    50_000,
    50_000,
    9,
]


@pytest.mark.parametrize("kind", [SumKind.HEADERS, SumKind.CONTENTS])
def test_a_changed_byte_is_found_wherever_batches_lie_in_what_is_read_at_once(
    open_log: Opener, batches: Batches, kind: SumKind
) -> None:
    log = open_log()
    for size in SIZES:
        batches.append(log, batches.make(1, size=size))
    sound = summed(log, 0, len(SIZES), is_deep=True, kind=kind)
    assert (sound.sums.damaged_batches, sound.sums.size_bytes) == (0, log.snapshot.segments[0].size_bytes)
    for number, size in enumerate(SIZES):
        for position in (HEADER_SIZE, HEADER_SIZE + size // 2, HEADER_SIZE + size - 1):
            flip(log, number, position)
            found = summed(log, 0, len(SIZES), is_deep=True, kind=kind).sums
            assert (found.damaged_batches, found.damaged_offset) == (1, number)
            flip(log, number, position)
    assert summed(log, 0, len(SIZES), is_deep=True, kind=kind) == sound


def test_a_step_of_a_deep_scan_reads_a_bounded_number_of_bytes(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    for _ in range(20):
        batches.append(log, batches.make(1, size=60_000))
    steps = sum_range(log.snapshot, 0, 20, lambda: False, is_deep=True)
    assert sum(1 for _ in steps) >= 20 * 60_000 // PIECE_BYTES - 1


@pytest.mark.parametrize("is_deep", [False, True])
@pytest.mark.parametrize("number", [0, 1, STEP_BATCHES - 1, STEP_BATCHES, STEP_BATCHES + 1, 1199])
@pytest.mark.parametrize("position", [8, 16, 23, 57])  # length, format, last offset delta, record count
def test_sums_reach_exactly_up_to_the_first_header_that_cannot_be(
    open_log: Opener, batches: Batches, number: int, position: int, is_deep: bool
) -> None:
    log = open_log()
    for _ in range(1200):
        batches.append(log, batches.make(1))
    sound = summed(log, 0, number, is_deep=is_deep).sums
    segment = log.snapshot.segments[0]
    places = list(segment.places())
    for changed in {number, min(number + 3, 1199)}:  # a later one changes nothing
        at = places[changed].position + position
        segment.file.write_at(b"\xff", at)
    found = summed(log, 0, 1200, is_deep=is_deep)
    assert found.damage is not None
    assert f"position {places[number].position}:" in found.damage
    assert (found.next_offset, found.sums) == (number, sound)
