"""What compaction keeps, drops and never touches."""

import random
from pathlib import Path

import pytest

from pipeline.errors import CorruptBatchError
from pipeline.log.compaction.jobs import Cleaned
from pipeline.log.compaction.kernels import ENTRY_BYTES
from pipeline.log.compaction.plan import SegmentRange
from pipeline.log.segment_names import GAP_SUFFIX, LOG_SUFFIX, segment_path
from pipeline.records.batch import (
    DELETE_HORIZON,
    read_header,
    set_log_append_time,
    verify_crc,
    write_header,
)
from pipeline.records.compression import Codec
from pipeline.records.memory import MIN_OPENED_BYTES
from tests.support.bombs import bomb
from tests.support.cleaning import (
    DAY_MS,
    NOW_MS,
    Directory,
    batch_of,
    headers,
    records,
    state,
)


@pytest.fixture
def log(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_worked_example_the_last_address_of_user_123_stays(log: Directory) -> None:
    for address in (b"bill@microsoft.com", b"bill@gatesfoundation.org", b"bill@gmail.com"):
        log.add_pairs((b"123", address))
    assert [(r.offset, r.key, r.value) for r in records(*log.clean())] == [(2, b"123", b"bill@gmail.com")]


def test_order_and_offsets_and_times_of_what_is_kept_never_change(log: Directory) -> None:
    source = random.Random(1)
    for _ in range(20):
        log.add_pairs(*((b"%d" % source.randrange(30), source.randbytes(9)) for _ in range(source.randrange(1, 9))))
    before = records(*(segment_path(log.path, s.base_offset, LOG_SUFFIX).read_bytes() for s in log.segments))
    kept = records(*log.clean())
    assert [record.offset for record in kept] == sorted(record.offset for record in kept)
    assert set(kept) <= set(before) and len(kept) < len(before)
    assert state(kept) == state(before)


@pytest.mark.parametrize("codec", Codec)
def test_batches_are_recompressed_in_their_own_codec(log: Directory, codec: Codec) -> None:
    log.add_pairs(*((b"%d" % (number % 7), b"v%d" % number) for number in range(40)), codec=codec)
    log.add_pairs((b"3", b"last"), codec=codec)
    (cleaned,) = log.clean()
    assert [header.codec for header in headers(cleaned)] == [codec, codec]
    kept = {b"0": 35, b"1": 36, b"2": 37, b"4": 39, b"5": 33, b"6": 34}
    assert state(records(cleaned)) == {b"3": b"last"} | {key: b"v%d" % offset for key, offset in kept.items()}


def test_a_batch_of_which_nothing_goes_is_copied_byte_by_byte(log: Directory) -> None:
    batches = [batch_of([(b"%d" % codec, b"value")], codec, codec=codec) for codec in Codec]
    log.add(*batches)
    assert log.clean() == [b"".join(batches)]


def test_segments_become_one_that_fits_segment_bytes_and_ends_where_its_last_source_ended(log: Directory) -> None:
    for number in range(6):
        log.add_pairs((b"k", b"%d" % number))
    size = log.segments[0].size_bytes
    cleaned = log.clean(segment_bytes=2 * size)
    assert [(r.base_offset, r.end_offset) for r in log.reports[:-1]] == [(0, 2), (2, 4), (4, 6)]  # type: ignore[union-attr]
    assert [[(h.base_offset, h.next_offset, h.record_count) for h in headers(content)] for content in cleaned] == [
        [(1, 2, 0)],
        [(3, 4, 0)],
        [(5, 6, 1)],
    ]


def test_a_segment_with_further_files_beside_it_keeps_its_name(log: Directory) -> None:
    for number in range(6):
        log.add_pairs((b"k", b"%d" % number))
    segment_path(log.path, 2, GAP_SUFFIX).write_bytes(b"2")
    log.clean()
    assert [(r.base_offset, r.end_offset) for r in log.reports[:-1]] == [(0, 2), (2, 6)]  # type: ignore[union-attr]


@pytest.mark.parametrize("deleted", range(7))
def test_segments_that_retention_took_meanwhile_are_left_out(log: Directory, deleted: int) -> None:
    for number in range(6):
        log.add_pairs((b"k", b"%d" % number), (b"%d" % number, b"x"))
    for segment in log.segments[:deleted]:
        segment_path(log.path, segment.base_offset, LOG_SUFFIX).unlink()
    found = state(records(*log.clean(segment_bytes=2 * log.segments[0].size_bytes)))
    assert found == ({b"k": b"5"} if deleted < 6 else {}) | {b"%d" % number: b"x" for number in range(deleted, 6)}
    starts = [report.base_offset for report in log.reports[:-1]]  # type: ignore[union-attr]
    assert starts == sorted({max(2 * deleted, start) for start in (0, 4, 8) if start + 4 > 2 * deleted})


def test_an_empty_batch_goes_when_it_no_longer_ends_a_segment(log: Directory) -> None:
    for number in range(6):
        log.add_pairs((b"k", b"%d" % number))
    log.take(log.clean(segment_bytes=2 * log.segments[0].size_bytes))
    (cleaned,) = log.clean()
    assert [(h.base_offset, h.record_count) for h in headers(cleaned)] == [(5, 1)]


def test_the_last_batch_of_a_producer_stays_for_its_sequence_number(log: Directory) -> None:
    log.add_pairs((b"k", b"1"), producer=7)
    log.add_pairs((b"k", b"2"), producer=7)
    log.add_pairs((b"k", b"3"))
    (cleaned,) = log.clean(kept_offsets=(1,))
    kept = headers(cleaned)
    assert [(h.base_offset, h.producer_id, h.last_sequence, h.record_count) for h in kept] == [
        (1, 7, 1, 0),
        (2, -1, -1, 1),
    ]


def test_records_without_key_go(log: Directory) -> None:
    log.add_pairs((None, b"old"), (b"k", b"1"), (None, b"too"))
    assert [record.offset for record in records(*log.clean())] == [1]


def test_a_deletion_takes_what_is_before_it_and_stays_for_delete_retention_ms(log: Directory) -> None:
    log.add_pairs((b"k", b"1"), (b"other", b"x"))
    log.add_pairs((b"k", None), (b"more", b"y"))
    log.take(log.clean())
    kept = records(segment_path(log.path, 0, LOG_SUFFIX).read_bytes())
    assert [(r.offset, r.key, r.value) for r in kept] == [(1, b"other", b"x"), (2, b"k", None), (3, b"more", b"y")]
    assert [r.timestamp_ms for r in kept] == [NOW_MS + 1, NOW_MS, NOW_MS + 1]
    log.take(log.clean(now_ms=NOW_MS + DAY_MS - 1))
    assert records(segment_path(log.path, 0, LOG_SUFFIX).read_bytes()) == kept
    log.take(log.clean(now_ms=NOW_MS + DAY_MS))
    assert [r.key for r in records(segment_path(log.path, 0, LOG_SUFFIX).read_bytes())] == [b"other", b"more"]


def test_the_delete_horizon_is_the_base_timestamp_of_a_marked_batch(log: Directory) -> None:
    log.add_pairs((b"k", None), (b"l", b"1"))
    (cleaned,) = log.clean()
    (header,) = headers(cleaned)
    assert header.attributes & DELETE_HORIZON and header.base_timestamp == NOW_MS + DAY_MS
    assert header.max_timestamp == NOW_MS + 1
    verify_crc(cleaned, 0, header)


@pytest.mark.parametrize("time_ms", [-(2**63), -1, 0, 2**62])
def test_tombstones_of_any_time_keep_their_time(log: Directory, time_ms: int) -> None:
    log.add_pairs((b"k", None), time_ms=time_ms)
    assert [(r.key, r.timestamp_ms) for r in records(*log.clean())] == [(b"k", time_ms)]


def test_log_append_time_stays(log: Directory) -> None:
    batch = batch_of([(b"k", None), (b"k", None), (b"l", b"1")], 0)
    set_log_append_time(batch, 0, NOW_MS + 99)
    log.add(batch)
    assert [(r.offset, r.timestamp_ms) for r in records(*log.clean())] == [(1, NOW_MS + 99), (2, NOW_MS + 99)]


def test_a_log_is_cleaned_as_far_as_the_offset_map_reaches(log: Directory) -> None:
    for number in range(12):
        log.add_pairs((b"a%d" % (number % 6), b"%d" % number), (b"b%d" % (number % 6), b"%d" % number))
    ends = []
    first_dirty = 0
    while first_dirty < log.end_offset:
        log.take(log.clean(first_dirty_offset=first_dirty, map_bytes=5 * ENTRY_BYTES + 8, map_load_factor=0.9))
        done = log.reports[-1]
        assert isinstance(done, Cleaned) and done.end_offset > first_dirty and done.keys <= 4
        first_dirty = done.end_offset
        ends.append(first_dirty)
    assert len(ends) > 2
    contents = [segment_path(log.path, segment.base_offset, LOG_SUFFIX).read_bytes() for segment in log.segments]
    assert sorted(record.offset for record in records(*contents)) == list(range(12, 24))


def test_records_past_the_offset_map_stay_even_without_key(log: Directory) -> None:
    log.add_pairs((b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (None, b"x"), (b"a", b"3"))
    kept = records(*log.clean(map_bytes=2 * ENTRY_BYTES, map_load_factor=0.5))
    assert [record.offset for record in kept] == [1, 2, 3, 4]


@pytest.mark.parametrize("position", [3, 20, 70, 118])
def test_damage_is_never_copied(log: Directory, position: int) -> None:
    content = bytearray(batch_of([(b"k", b"1" * 30), (b"l", b"2" * 30)], 0))
    content[position] ^= 0x55
    segment_path(log.path, 0, LOG_SUFFIX).write_bytes(content)
    log.segments.append(SegmentRange(0, 2, len(content)))
    with pytest.raises(CorruptBatchError):
        log.clean()


def test_records_that_are_none_under_a_true_checksum_are_refused(log: Directory) -> None:
    content = batch_of([(b"k", b"1" * 30), (b"l", b"2" * 30)], 0)
    content[61] = 0xFF
    write_header(content, read_header(content))
    log.add(content)
    with pytest.raises(CorruptBatchError):
        log.clean()


def test_the_cleaner_opens_what_admission_admits_and_says_what_to_do_about_more(log: Directory) -> None:
    admitted = bomb(Codec.ZSTD, MIN_OPENED_BYTES - (1 << 20), NOW_MS)
    log.add(admitted)
    assert len(log.clean()) == 1
    with pytest.raises(CorruptBatchError, match=r"raise max\.message\.bytes of the topic"):
        log.clean(max_opened_bytes=MIN_OPENED_BYTES // 2)


def test_a_file_that_ends_within_a_batch_is_refused(log: Directory) -> None:
    log.add_pairs((b"k", b"1" * 100))
    log.segments[0] = log.segments[0]._replace(size_bytes=120)
    with pytest.raises(CorruptBatchError):
        log.clean()


def test_a_batch_longer_than_a_portion_is_read_whole(log: Directory) -> None:
    log.add_pairs((b"k", b"1"), (b"l", bytes(9 << 20)), (b"k", b"2"))
    assert [record.offset for record in records(*log.clean())] == [1, 2]
