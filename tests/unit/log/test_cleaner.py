"""What compaction keeps, drops and never touches; and the kernels against their twin in plain Python."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.errors import CorruptBatchError
from pipeline.log.cleaner import OffsetMap, clean
from pipeline.log.cleaner_jobs import Cleaned, CleaningJob, GroupCleaned
from pipeline.log.cleaner_kernels import ENTRY_BYTES, hash_key, scan_headers
from pipeline.log.compaction_plan import SegmentRange
from pipeline.log.files import DiskFiles
from pipeline.log.segment import CLEANED_SUFFIX, GAP_SUFFIX, LOG_SUFFIX, segment_path
from pipeline.records.batch import (
    DELETE_HORIZON,
    BatchHeader,
    iterate_headers,
    read_header,
    set_base_offset,
    set_log_append_time,
    verify_crc,
    write_header,
)
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.record import Record, iterate_records
from pipeline.testing.plain_cleaner import hash_plainly, map_plainly, select_plainly

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
Pair = tuple[bytes | None, bytes | None]


def batch_of(
    pairs: Sequence[Pair], base_offset: int, *, codec: Codec = Codec.NONE, time_ms: int = NOW_MS, producer: int = -1
) -> bytearray:
    builder = BatchBuilder(codec, 1 << 30)
    for number, (key, value) in enumerate(pairs):
        builder.append(key, value, (("h", b"1"),) if number % 3 == 0 else (), time_ms + number)
    made = builder.build(producer, 0 if producer >= 0 else -1, base_offset if producer >= 0 else -1)
    set_base_offset(made, 0, base_offset)
    return made


def with_attributes(batch: bytearray, attributes: int) -> bytearray:
    write_header(batch, read_header(batch)._replace(attributes=attributes))
    return batch


class Directory:
    """Segments on the disk, and the cleaner on them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.segments: list[SegmentRange] = []
        self.end_offset = 0
        self.reports: list[GroupCleaned | Cleaned] = []

    def add(self, *batches: bytes | bytearray) -> None:
        content = b"".join(batches)
        base, self.end_offset = self.end_offset, max(header.next_offset for _, header in iterate_headers(content))
        segment_path(self.path, base, LOG_SUFFIX).write_bytes(content)
        self.segments.append(SegmentRange(base, self.end_offset, len(content)))

    def add_pairs(self, *pairs: Pair, **made: Any) -> None:
        self.add(batch_of(pairs, self.end_offset, **made))

    def clean(self, **changed: Any) -> list[bytes]:
        """Clean; returns the cleaned segments."""
        job = CleaningJob(
            directory=str(self.path),
            segments=tuple(self.segments),
            first_dirty_offset=0,
            now_ms=NOW_MS,
            delete_retention_ms=DAY_MS,
            segment_bytes=1 << 30,
            index_interval_bytes=0,
            map_bytes=1 << 20,
            map_load_factor=0.9,
            bytes_per_second=1e12,
            kept_offsets=(),
            hash_key=(3, 4),
        )
        job = CleaningJob.decode(replace(job, **changed).encode())
        self.reports = list(clean(job, DiskFiles(), lambda _: None))
        return [
            segment_path(self.path, report.base_offset, LOG_SUFFIX + CLEANED_SUFFIX).read_bytes()
            for report in self.reports
            if isinstance(report, GroupCleaned)
        ]

    def take(self, cleaned: Sequence[bytes]) -> None:
        """Go on with the cleaned segments."""
        kept = [segment for segment in self.segments if segment.base_offset >= self.reports[-2].end_offset]
        self.segments = kept
        for report, content in zip(self.reports, cleaned, strict=False):
            assert isinstance(report, GroupCleaned)
            segment_path(self.path, report.base_offset, LOG_SUFFIX).write_bytes(content)
            self.segments.append(SegmentRange(report.base_offset, report.end_offset, len(content)))
        self.segments.sort()


@pytest.fixture
def log(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def records(*contents: bytes) -> list[Record]:
    return [record for content in contents for record in iterate_records(content)]


def headers(content: bytes) -> list[BatchHeader]:
    return [header for _, header in iterate_headers(content)]


def state(found: Iterable[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in found}


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
def test_every_codec_is_opened_and_written_again_in_the_same_codec(log: Directory, codec: Codec) -> None:
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
def test_deletions_of_any_time_keep_it(log: Directory, time_ms: int) -> None:
    log.add_pairs((b"k", None), time_ms=time_ms)
    assert [(r.key, r.timestamp_ms) for r in records(*log.clean())] == [(b"k", time_ms)]


def test_log_append_time_stays(log: Directory) -> None:
    batch = batch_of([(b"k", None), (b"k", None), (b"l", b"1")], 0)
    set_log_append_time(batch, 0, NOW_MS + 99)
    log.add(batch)
    assert [(r.offset, r.timestamp_ms) for r in records(*log.clean())] == [(1, NOW_MS + 99), (2, NOW_MS + 99)]


def test_when_the_map_is_full_the_log_is_cleaned_as_far_as_it_reaches_and_further_the_next_time(log: Directory) -> None:
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


def test_what_is_behind_the_map_stays_even_without_key(log: Directory) -> None:
    log.add_pairs((b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (None, b"x"), (b"a", b"3"))
    kept = records(*log.clean(map_bytes=2 * ENTRY_BYTES, map_load_factor=0.5))
    assert [record.offset for record in kept] == [1, 2, 3, 4]


def test_transactional_and_control_batches_stay_and_supersede_nothing(log: Directory) -> None:
    log.add_pairs((b"k", b"1"))
    log.add(with_attributes(batch_of([(b"k", b"2"), (b"k", b"3")], 1, producer=5), 0x10))
    log.add(with_attributes(batch_of([(b"\0\0\0\0", b"")], 3, producer=5), 0x30))
    assert [header.record_count for header in headers(b"".join(log.clean()))] == [1, 2, 1]
    log.add_pairs((b"k", b"4"))
    assert [header.record_count for header in headers(b"".join(log.clean()))] == [2, 1, 1]


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


def test_a_file_that_ends_within_a_batch_is_refused(log: Directory) -> None:
    log.add_pairs((b"k", b"1" * 100))
    log.segments[0] = log.segments[0]._replace(size_bytes=120)
    with pytest.raises(CorruptBatchError):
        log.clean()


def test_a_batch_longer_than_a_portion_is_read_whole(log: Directory) -> None:
    log.add_pairs((b"k", b"1"), (b"l", bytes(9 << 20)), (b"k", b"2"))
    assert [record.offset for record in records(*log.clean())] == [1, 2]


def test_hash_is_siphash_with_128_bits() -> None:
    """The first vectors of its authors."""
    for length, expected in ((0, "a3817f04ba25a8e66df67214c7550293"), (1, "da87c1d86b99af44347659119b22fc45")):
        k0, k1 = (int.from_bytes(bytes(range(start, start + 8)), "little") for start in (0, 8))
        first, second = hash_plainly(bytes(range(length)), k0, k1)
        assert (first.to_bytes(8, "little") + second.to_bytes(8, "little")).hex() == expected


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=70), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_hash_is_that_of_the_twin(key: bytes, k0: int, k1: int) -> None:
    array = np.frombuffer(b"<" + key, dtype=np.uint8)
    assert tuple(map(int, hash_key(array, 1, len(key), np.uint64(k0), np.uint64(k1)))) == hash_plainly(key, k0, k1)


def test_an_entry_takes_24_bytes() -> None:
    offset_map = OffsetMap(max_bytes=24_000, load_factor=0.9, max_keys=10**9, hash_key=(1, 2))
    assert offset_map.max_used == 900 and offset_map._table.nbytes == 24_000


PAIRS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"cc", b"d" * 20])),
        st.one_of(st.none(), st.binary(max_size=12)),
    ),
    min_size=1,
    max_size=6,
)
LOGS = st.lists(
    st.tuples(
        PAIRS, st.sampled_from(list(Codec)), st.sampled_from([-1, 7, 8]), st.sampled_from([0, 0, 0, 1, 0x10, 0x30])
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=LOGS, per_segment=st.integers(1, 4), max_keys=st.integers(1, 6), seed=st.integers(0, 99))
@example(  # the map is full right behind a gap at a segment's end: nothing lies in the gap, so it is clean too
    made=[([(None, None), (b"", None)], Codec.NONE, -1, 1), ([(b"a", None)], Codec.NONE, -1, 0)],
    per_segment=1,
    max_keys=1,
    seed=1,
)
def test_cleaned_is_what_the_twin_cleans_and_the_state_is_that_of_a_dict(
    tmp_path: Path, made: list[tuple[list[Pair], Codec, int, int]], per_segment: int, max_keys: int, seed: int
) -> None:
    log = Directory(tmp_path)
    offset = 0
    batches = []
    for pairs, codec, producer, flags in made:
        batch = batch_of(pairs, offset, codec=codec, producer=producer, time_ms=NOW_MS + 1000 * offset)
        if flags > 1:
            with_attributes(batch, read_header(batch).attributes | flags)
        batches.append(batch)
        offset += len(pairs) + (seed % 3) * flags % 2
    for first in range(0, len(batches), per_segment):
        log.end_offset = read_header(batches[first]).base_offset
        log.add(*batches[first : first + per_segment])
    ends = [segment.base_offset for segment in log.segments[1:]]
    log.segments = [
        segment._replace(end_offset=end) for segment, end in zip(log.segments, [*ends, log.end_offset], strict=True)
    ]
    whole = b"".join(batches)
    first_dirty = seed % (offset + 1)
    kept_offsets = tuple(header.last_offset for header in headers(whole) if header.last_offset % 5 == 0)
    changed = {"first_dirty_offset": first_dirty, "kept_offsets": kept_offsets}
    now_ms = NOW_MS
    for _ in range(2):
        segment_ends = [segment.end_offset for segment in log.segments]
        cleaned = b"".join(log.clean(map_bytes=24 * (max_keys + 1), map_load_factor=1.0, now_ms=now_ms, **changed))
        done = log.reports[-1]
        assert isinstance(done, Cleaned)
        found, end = map_plainly(whole, from_offset=first_dirty, max_keys=max_keys, segment_ends=segment_ends)
        assert done.end_offset == end
        group = [header for header in headers(whole) if header.base_offset < done_end(log)]
        part = whole[: sum(header.size_bytes for header in group)]
        expected = select_plainly(
            part, found, mapped_end=end, now_ms=now_ms, delete_retention_ms=DAY_MS, kept_offsets=kept_offsets
        )
        assert cleaned == expected
        rest = whole[len(part) :]
        log.take([cleaned] if cleaned else [])
        whole, now_ms = cleaned + rest, now_ms + DAY_MS
    if first_dirty == 0 and not any(flags > 1 for *_, flags in made) and done.end_offset == log.end_offset:
        model = {key: value for pairs, *_ in made for key, value in pairs if key is not None}
        seen = state(records(whole))
        assert {key: value for key, value in seen.items() if value is not None} == {
            key: value for key, value in model.items() if value is not None
        }


def done_end(log: Directory) -> int:
    return max((r.end_offset for r in log.reports if isinstance(r, GroupCleaned)), default=0)


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=61, max_size=200), st.integers(0, 5))
def test_any_bytes_are_scanned_or_refused_as_the_header_reader_does(noise: bytes, cut: int) -> None:
    content = bytes(batch_of([(b"k", b"v")], 0)) + noise
    content = content[: len(content) - cut]
    table = np.empty((len(content) // 61, 18), dtype=np.int64)
    count, end, sound = scan_headers(np.frombuffer(content, dtype=np.uint8), len(content), 0, table)
    position = 0
    for row in range(count):
        header = read_header(content, position)
        assert (table[row, 0], table[row, 1], table[row, 3]) == (position, header.size_bytes, header.last_offset)
        position += header.size_bytes
    assert end == position
    if not sound:
        with pytest.raises(CorruptBatchError):
            header = read_header(content, position)
            if header.base_offset < table[count - 1, 3] + 1:
                raise CorruptBatchError("offsets do not rise")
