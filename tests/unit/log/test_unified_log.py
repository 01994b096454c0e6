import os
import tracemalloc
from pathlib import Path

import pytest

from pipeline.errors import (
    DamagedSegmentError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    OffsetOverlapError,
    OutOfOrderSequenceError,
    StaleProducerEpochError,
    StorageError,
)
from pipeline.log import log_snapshot
from pipeline.log.config import LogConfig
from pipeline.log.directories.shutdown import close_log
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Offset
from pipeline.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, iterate_headers, write_crc, write_header
from pipeline.records.compression import Codec
from pipeline.records.memory import MIN_OPENED_BYTES
from tests.support.bombs import bomb
from tests.support.steps import to_end
from tests.unit.log.conftest import Batches, Opener


def test_append_assigns_dense_offsets_and_the_epoch(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    first = batches.append(log, batches.make(3))
    second = batches.append(log, batches.make(2) + batches.make(4))
    assert (first.base_offset, first.last_offset, first.duplicate) == (0, 2, False)
    assert (second.base_offset, second.last_offset) == (3, 8)
    assert [header.base_offset for header in second.headers] == [3, 5]
    assert log.log_end_offset == 9
    headers = batches.read_all(log)
    assert [header.base_offset for header in headers] == [0, 3, 5]
    assert {header.partition_leader_epoch for header in headers} == {batches.epoch}
    assert headers == [*first.headers, *second.headers] == list(log.headers(Offset(0)))


def test_the_file_has_kafkas_name_and_holds_the_batches_end_to_end(
    open_log: Opener, batches: Batches, tmp_path: Path
) -> None:
    log = open_log()
    batches.append(log, batches.make(3))
    batches.append(log, batches.make(2))
    content = (tmp_path / "events-0" / "00000000000000000000.log").read_bytes()
    assert [header.base_offset for _, header in iterate_headers(content)] == [0, 3]


def test_a_read_gives_one_whole_batch_even_if_longer_than_asked(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    batches.append(log, batches.make(1, size=5000))
    batches.append(log, batches.make(1))
    found = log.read(Offset(0), 10, log.log_end_offset)
    assert found.region.size > 5000
    assert [header.base_offset for header in batches.read(log, 0, 10)] == [0]


def damage_length(log: UnifiedLog, position: int, longer_by: int) -> None:
    path = log.directory / "00000000000000000000.log"
    with path.open("r+b") as file:
        file.seek(position + 8)
        length = int.from_bytes(file.read(4), "big")
        file.seek(position + 8)
        file.write((length + longer_by).to_bytes(4, "big"))


@pytest.mark.parametrize("batches_over", [20, 100, 1000])
def test_batches_behind_a_wrong_length_are_not_passed_over(
    open_log: Opener, batches: Batches, batches_over: int
) -> None:
    log = open_log(LogConfig(index_interval_bytes=1000))
    size_bytes = len(batches.make())
    for _ in range(200):
        batches.append(log, batches.make())
    damage_length(log, 50 * size_bytes, batches_over * size_bytes)  # ends where a batch ends, or past the end
    seen: set[int | str] = set()
    for offset in range(51, 200):
        try:
            seen.add(batches.read(log, offset)[0].base_offset - offset)
        except DamagedSegmentError as error:
            assert f"batch of offset {offset} cannot be found" in str(error)
            seen.add("damaged")
    assert seen == {0, "damaged"}
    assert batches.read(log, 199)[0].base_offset == 199


def test_a_read_within_a_batch_gives_that_batch(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    batches.append(log, batches.make(10))
    batches.append(log, batches.make(10))
    for offset in range(20):
        assert batches.read(log, offset)[0].base_offset == offset // 10 * 10


def test_a_read_is_bounded_by_max_bytes_and_by_the_offset_up_to(
    open_log: Opener, batches: Batches, small_segments: LogConfig
) -> None:
    for config in (LogConfig(), small_segments):
        log = open_log(config)
        start = log.log_end_offset
        for _ in range(10):
            batches.append(log, batches.make(1, size=200))
        size = log.read(start, 1, log.log_end_offset).region.size
        assert log.read(start, size * 2 + 5, log.log_end_offset).region.size == size * 2 + 5
        up_to = Offset(start + 2)
        assert [header.base_offset for header in batches.read(log, start, 1 << 20, up_to)] == [start, start + 1]
        assert log.read(up_to, 1 << 20, up_to).region.size == 0


def _emptied(offset: int) -> bytearray:
    """The batch of one record at this offset, as compaction leaves it."""
    batch = bytearray(HEADER_SIZE)
    header = BatchHeader(offset, HEADER_SIZE - LOG_OVERHEAD, 0, 2, 0, 0, 0, 1, 1, -1, -1, -1, 0)
    write_header(batch, header)
    return batch


def test_a_read_passes_over_so_many_batches_without_records_and_is_continued_behind_them(
    open_log: Opener, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_snapshot, "MAX_SKIPPED", 10)
    log = open_log()
    batches.append_keeping(log, b"".join(map(_emptied, range(25))))
    batches.append_keeping(log, batches.make(1, base_offset=25))
    assert [header.base_offset for header in batches.read(log, 0)] == [9]
    assert [header.base_offset for header in batches.read(log, 10)] == [19]
    assert [header.base_offset for header in batches.read(log, 20)] == [25]
    assert [header.base_offset for header in batches.read(log, 3, up_to=8)] == [7]


def test_reads_of_a_request_share_a_bound_on_skipped_batches(
    open_log: Opener, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_snapshot, "MAX_SKIPPED", 10)
    log, skips = open_log(), log_snapshot.SkipBudget()
    batches.append_keeping(log, b"".join(map(_emptied, range(25))))
    assert [log.read(Offset(0), 1, log.log_end_offset, skips).base_offset for _ in range(3)] == [9, 0, 0]


def test_a_batch_that_is_not_wholly_before_the_bound_is_not_read(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    batches.append(log, batches.make(10))
    assert log.read(Offset(0), 1000, Offset(5)).region.size == 0


def test_a_read_outside_of_the_log_is_refused(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    batches.append(log, batches.make(3))
    assert log.read(Offset(3), 100, Offset(3)).region.size == 0
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            log.read(Offset(offset), 100, Offset(3))
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (0, 3)


def test_segments_roll_by_size_and_reads_go_on_in_the_next(
    open_log: Opener, batches: Batches, small_segments: LogConfig, tmp_path: Path
) -> None:
    log = open_log(small_segments)
    for _ in range(50):
        batches.append(log, batches.make(3, size=100))
    assert len(log.snapshot.segments) > 10
    assert [header.base_offset for header in batches.read_all(log)] == list(range(0, 150, 3))
    assert [header.base_offset for header in log.headers(Offset(70))] == list(range(69, 150, 3))
    for offset in range(150):
        assert batches.read(log, offset)[0].base_offset == offset // 3 * 3
    assert all(path.stat().st_size <= 1000 for path in (tmp_path / "events-0").glob("*.log"))


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(
    open_log: Opener, batches: Batches, small_segments: LogConfig
) -> None:
    log = open_log(small_segments)
    for size in (5000, 10, 5000, 5000):
        batches.append(log, batches.make(1, size=size))
    assert len(log.snapshot.segments) == 4
    assert len(batches.read_all(log)) == 4


def test_segments_roll_by_the_age_of_records_not_by_the_clock(open_log: Opener, batches: Batches) -> None:
    log = open_log(LogConfig(segment_ms=1000))
    old = batches.now_ms - 10**9
    batches.append(log, batches.make(1, timestamp=old))
    batches.append(log, batches.make(1, timestamp=old + 1000), now_ms=batches.now_ms + 5000)
    assert len(log.snapshot.segments) == 1
    batches.append(log, batches.make(1, timestamp=old + 1001))
    assert len(log.snapshot.segments) == 2


def test_segments_roll_by_the_clock_where_records_have_no_time(open_log: Opener, batches: Batches) -> None:
    log = open_log(LogConfig(segment_ms=1000))
    batches.append(log, batches.make(1, timestamp=-1))
    batches.append(log, batches.make(1, timestamp=-1), now_ms=batches.now_ms + 1000)
    assert len(log.snapshot.segments) == 1
    batches.append(log, batches.make(1, timestamp=-1), now_ms=batches.now_ms + 1001)
    assert len(log.snapshot.segments) == 2


def test_kept_offsets_may_leave_gaps_and_a_read_in_a_gap_gives_the_next_batch(
    open_log: Opener, batches: Batches, small_segments: LogConfig
) -> None:
    for config in (LogConfig(), small_segments):
        log = open_log(config)
        start = log.log_end_offset
        for base_offset in (start + 5, start + 20, start + 40):
            info = batches.append_keeping(log, batches.make(5, base_offset=base_offset, size=150))
            assert info.base_offset == base_offset
        assert log.log_end_offset == start + 45
        for offset, expected in ((0, 5), (5, 5), (9, 5), (10, 20), (24, 20), (25, 40), (44, 40)):
            assert batches.read(log, start + offset)[0].base_offset == start + expected


def test_kept_offsets_must_not_overlap(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    batches.append_keeping(log, batches.make(5, base_offset=10))
    for base_offset in (0, 10, 14):
        with pytest.raises(OffsetOverlapError) as caught:
            batches.append_keeping(log, batches.make(5, base_offset=base_offset))
        assert caught.value.log_end_offset == 15
    assert log.log_end_offset == 15
    assert len(batches.read_all(log)) == 1


def test_gaps_wider_than_an_index_reaches(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    wide = 5 * 2**31
    batches.append_keeping(
        log, batches.make(1) + batches.make(2, base_offset=wide) + batches.make(1, base_offset=2**60)
    )
    assert [header.base_offset for header in batches.read_all(log)] == [0, wide, 2**60]
    assert log.log_end_offset == 2**60 + 1
    again = open_log()
    assert [header.base_offset for header in batches.read_all(again)] == [0, wide, 2**60]


def test_an_empty_log_may_start_far_away(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    batches.append_keeping(log, batches.make(2, base_offset=10**12))
    assert batches.read(log, 0)[0].base_offset == 10**12
    assert open_log().log_end_offset == 10**12 + 2


def test_an_idempotent_batch_sent_again_is_not_appended_again(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    sent = [batches.make(2, producer_id=7, epoch=0, sequence=2 * number) for number in range(7)]
    for batch in sent:
        batches.append(log, batch)
    end = log.log_end_offset
    for number in range(2, 7):
        info = batches.append(log, sent[number])
        assert info.duplicate
        assert (info.base_offset, info.last_offset) == (2 * number, 2 * number + 1)
    assert log.log_end_offset == end
    with pytest.raises(OutOfOrderSequenceError):
        batches.append(log, sent[1])
    with pytest.raises(OutOfOrderSequenceError):
        batches.append(log, batches.make(2, producer_id=7, epoch=0, sequence=16))
    batches.append(log, batches.make(1, producer_id=7, epoch=1, sequence=0))
    with pytest.raises(StaleProducerEpochError):
        batches.append(log, sent[6])


@pytest.mark.parametrize("clean", [True, False])
def test_duplicates_are_known_after_a_restart(
    open_log: Opener, batches: Batches, small_segments: LogConfig, clean: bool
) -> None:
    log = open_log(small_segments)
    sent = [batches.make(2, size=200, producer_id=7, epoch=0, sequence=2 * number) for number in range(10)]
    for batch in sent:
        batches.append(log, batch)
    if clean:
        close_log(log)
    again = open_log(small_segments, clean=clean)
    for number in range(5, 10):
        assert batches.append(again, sent[number]).base_offset == 2 * number
    assert again.log_end_offset == 20
    batches.append(again, batches.make(1, producer_id=7, epoch=0, sequence=20))


def test_offsets_by_time_are_exact(open_log: Opener, batches: Batches, small_segments: LogConfig) -> None:
    for config in (LogConfig(index_interval_bytes=100), small_segments):
        log = open_log(config)
        start = log.log_end_offset
        for number in range(20):
            batches.append(log, batches.make(10, timestamp=1000 + number * 100, step_ms=10))
        if start == 0:
            for timestamp in range(990, 3000, 7):
                expected = max(0, -(-(timestamp - 1000) // 10))
                found = to_end(log.offset_for_timestamp(timestamp))
                assert found == ((1000 + expected * 10, expected) if expected < 200 else None)
        assert log.snapshot.max_timestamp == 1000 + 19 * 100 + 90


def test_offsets_by_time_where_time_goes_back(open_log: Opener, batches: Batches, small_segments: LogConfig) -> None:
    log = open_log(small_segments)
    times = [(number * 7919) % 500 for number in range(200)]
    for time in times:
        batches.append(log, batches.make(1, timestamp=time))
    for timestamp in range(0, 510, 3):
        expected = next(((time, offset) for offset, time in enumerate(times) if time >= timestamp), None)
        assert to_end(log.offset_for_timestamp(timestamp)) == expected


@pytest.mark.long
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_a_search_by_time_takes_little_memory_of_what_a_batch_holds(
    open_log: Opener, batches: Batches, codec: Codec
) -> None:
    log = open_log(LogConfig())
    batches.append(log, bomb(codec, 48 << 20, 1000))
    batches.append(log, bomb(codec, MIN_OPENED_BYTES + (2 << 20), 2000))
    batches.append(log, batches.make(3, timestamp=3000, step_ms=10))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert to_end(log.offset_for_timestamp(500)) == (1000, 0)
        assert to_end(log.offset_for_timestamp(1500)) == (2000, 1)
        assert to_end(log.offset_for_timestamp(3005)) == (3010, 3)
        used = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert used < 16 << 20


def test_a_batch_that_cannot_be_opened_is_found_by_time_at_its_base_offset(open_log: Opener, batches: Batches) -> None:
    log = open_log(LogConfig())
    batches.append(log, batches.make(2, timestamp=1000, step_ms=10))
    garbage = bomb(Codec.GZIP, 1 << 20, 2000)
    garbage[HEADER_SIZE:] = b"this is no gzip".ljust(len(garbage) - HEADER_SIZE)
    write_crc(garbage, 0, len(garbage))
    batches.append(log, garbage)
    batches.append(log, batches.make(2, timestamp=3000, step_ms=10))
    assert to_end(log.offset_for_timestamp(1500)) == (2000, 2)
    assert to_end(log.offset_for_timestamp(2500)) == (3000, 3)


def test_a_roll_within_an_append_flushes_without_the_lock_of_the_snapshot(
    open_log: Opener, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    batches.append(log, batches.make(1))
    seen: list[bool] = []
    monkeypatch.setattr(log, "flush", lambda: seen.append(log.locks.snapshot.locked()))
    batches.append_keeping(log, batches.make(1, base_offset=2**33))
    assert (seen, log.log_end_offset) == ([False], 2**33 + 1)


def test_flush_by_time_and_of_closed_segments(open_log: Opener, batches: Batches, small_segments: LogConfig) -> None:
    log = open_log(LogConfig(flush_ms=100))
    assert not log.is_flush_due(batches.now_ms + 1000)
    batches.append(log, batches.make(1))
    assert not log.is_flush_due(batches.now_ms + 99)
    assert log.is_flush_due(batches.now_ms + 100)
    log.flush()
    assert log.recovery_point == 1
    assert not log.is_flush_due(batches.now_ms + 1000)
    log = open_log(small_segments)
    for _ in range(10):
        batches.append(log, batches.make(1, size=400))
    assert log.is_flush_due(batches.now_ms)
    log.flush()
    assert not log.is_flush_due(batches.now_ms)


def test_a_region_outlives_the_log(open_log: Opener, batches: Batches, tmp_path: Path) -> None:
    log = open_log()
    batch = batches.make(3)
    batches.append(log, batch)
    region = log.read(Offset(0), 1000, Offset(3)).region
    close_log(log)
    del log
    (tmp_path / "events-0" / "00000000000000000000.log").unlink()
    assert os.pread(region.file.fileno(), region.size, region.position)[16:] == batch[16:]


def test_a_closed_log_refuses(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    close_log(log)
    with pytest.raises(StorageError, match="closed"):
        batches.append(log, batches.make(1))
    with pytest.raises(StorageError, match="closed"):
        log.read(Offset(0), 1, Offset(0))


def test_memory_of_an_index_is_bounded(open_log: Opener, batches: Batches) -> None:
    log = open_log(LogConfig(index_interval_bytes=1))
    for _ in range(3000):
        batches.append(log, batches.make(1))
    index = log.snapshot.segments[-1].offset_index
    assert len(index) == 2999
    assert index.path.stat().st_size > 2000 * 8
    for offset in range(0, 3000, 17):
        assert batches.read(log, offset)[0].base_offset == offset


def test_a_log_whose_offsets_are_used_up_refuses_appends_and_can_be_read(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    last = 2**63 - 3
    batches.append_keeping(log, batches.make(1, base_offset=last))
    with pytest.raises(InvalidRecordError, match="and at 9223372036854775807 at most"):
        batches.append(log, batches.make(2))
    assert batches.append(log, batches.make(1)).base_offset == last + 1
    assert log.log_end_offset == 2**63 - 1
    with pytest.raises(InvalidRecordError):
        batches.append(log, batches.make(1))
    assert log.failure is None
    assert [header.base_offset for header in batches.read_all(log)] == [last, last + 1]
    assert open_log().log_end_offset == 2**63 - 1
