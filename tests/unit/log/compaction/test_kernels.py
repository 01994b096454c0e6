"""The kernels of compaction against their twin in plain Python."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.errors import CorruptBatchError
from pipeline.log.compaction.cleaner import OffsetMap
from pipeline.log.compaction.jobs import Cleaned, GroupCleaned
from pipeline.log.compaction.kernels import BATCH_FIELDS, hash_key, scan_headers
from pipeline.log.transactions import is_abort
from pipeline.records.batch import (
    CONTROL,
    TRANSACTIONAL,
    iterate_headers,
    read_header,
)
from pipeline.records.compression import Codec
from pipeline.testing.plain_cleaner import hash_plainly, left_plainly, map_plainly, select_plainly
from tests.support.cleaning import (
    ABORT,
    COMMIT,
    DAY_MS,
    NOW_MS,
    Directory,
    Pair,
    batch_of,
    committed,
    headers,
    marker,
    state,
    with_attributes,
)


def test_hash_is_siphash_with_128_bits() -> None:
    """The first vectors of its authors."""
    for length, expected in ((0, "a3817f04ba25a8e66df67214c7550293"), (1, "da87c1d86b99af44347659119b22fc45")):
        k0, k1 = (int.from_bytes(bytes(range(start, start + 8)), "little") for start in (0, 8))
        first, second = hash_plainly(bytes(range(length)), k0, k1)
        assert (first.to_bytes(8, "little") + second.to_bytes(8, "little")).hex() == expected


@settings(max_examples=100)
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
        PAIRS,
        st.sampled_from(list(Codec)),
        st.sampled_from([-1, 7, 8]),
        st.sampled_from(["plain", "plain", "gap", "transactional", "transactional", "abort", "commit", "control"]),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.long
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=LOGS, per_segment=st.integers(1, 4), max_keys=st.integers(1, 6), seed=st.integers(0, 99))
@example(  # the map is full right behind a gap at a segment's end: nothing lies in the gap, so it is clean too
    made=[([(None, None), (b"", None)], Codec.NONE, -1, "gap"), ([(b"a", None)], Codec.NONE, -1, "plain")],
    per_segment=1,
    max_keys=1,
    seed=1,
)
def test_the_kernel_cleans_as_its_twin_and_leaves_the_state_of_a_dict(
    tmp_path: Path, made: list[tuple[list[Pair], Codec, int, str]], per_segment: int, max_keys: int, seed: int
) -> None:
    for left in tmp_path.iterdir():
        left.unlink()
    log = Directory(tmp_path)
    offset = 0
    batches = []
    for pairs, codec, producer, kind in made:
        batches.append(batch_of_kind(kind, pairs, offset, codec, producer))
        offset = read_header(batches[-1]).next_offset + (seed % 3 if kind == "gap" else 0)
    for first in range(0, len(batches), per_segment):
        log.end_offset = read_header(batches[first]).base_offset
        log.add(*batches[first : first + per_segment])
    ends = [segment.base_offset for segment in log.segments[1:]]
    log.segments = [
        segment._replace(end_offset=end) for segment, end in zip(log.segments, [*ends, log.end_offset], strict=True)
    ]
    log.index(*aborted_in(batches))
    whole = b"".join(batches)
    model = state(committed(whole, log.aborted))
    first_dirty = seed % (offset + 1)
    kept_offsets = tuple(header.last_offset for header in headers(whole) if header.last_offset % 5 == 0)
    changed = {"first_dirty_offset": first_dirty, "kept_offsets": kept_offsets}
    now_ms = NOW_MS
    for _ in range(3):
        segment_ends, aborted = [segment.end_offset for segment in log.segments], log.aborted
        cleaned = log.clean(map_bytes=24 * (max_keys + 1), map_load_factor=1.0, now_ms=now_ms, **changed)
        done = log.reports[-1]
        assert isinstance(done, Cleaned)
        found, end = map_plainly(
            whole, from_offset=first_dirty, max_keys=max_keys, segment_ends=segment_ends, aborted=aborted
        )
        assert done.end_offset == end
        part = b"".join(
            whole[at : at + header.size_bytes]
            for at, header in iterate_headers(whole)
            if header.base_offset < done_end(log)
        )
        assert b"".join(cleaned) == select_plainly(
            part,
            found,
            mapped_end=end,
            now_ms=now_ms,
            delete_retention_ms=DAY_MS,
            kept_offsets=kept_offsets,
            group_ends=[headers(content)[-1].last_offset for content in cleaned],
            aborted=aborted,
        )
        log.take(cleaned)
        behind = [transaction for transaction in aborted if transaction.last_offset >= done_end(log)]
        assert log.aborted == sorted({*left_plainly(part, aborted), *behind}, key=lambda found: found.last_offset)
        whole, now_ms = b"".join(cleaned) + whole[len(part) :], now_ms + DAY_MS
        if first_dirty == 0 and done.end_offset == log.end_offset:
            seen = state(committed(whole, log.aborted))
            assert with_values(seen) == with_values(model)


def with_values(found: dict[bytes | None, bytes | None]) -> dict[bytes | None, bytes | None]:
    return {key: value for key, value in found.items() if key is not None and value is not None}


def batch_of_kind(kind: str, pairs: Sequence[Pair], offset: int, codec: Codec, producer: int) -> bytearray:
    if kind in {"abort", "commit"}:
        return marker(ABORT if kind == "abort" else COMMIT, offset, max(producer, 7))
    if kind in {"transactional", "control"}:
        batch = batch_of(pairs, offset, codec=codec, producer=max(producer, 7), time_ms=NOW_MS + 1000 * offset)
        flags = TRANSACTIONAL if kind == "transactional" else CONTROL
        return with_attributes(batch, read_header(batch).attributes | flags)
    return batch_of(pairs, offset, codec=codec, producer=producer, time_ms=NOW_MS + 1000 * offset)


def aborted_in(batches: Sequence[bytearray]) -> list[tuple[int, int, int]]:
    """As the log finds them: producer, first offset and marker of each."""
    found = []
    begun: dict[int, int] = {}
    for batch in batches:
        header = read_header(batch)
        if not header.is_control and header.is_transactional:
            begun.setdefault(header.producer_id, header.base_offset)
        kind = is_abort(bytes(batch), header) if header.is_control else None
        if kind is not None and (first := begun.pop(header.producer_id, None)) is not None and kind:
            found.append((header.producer_id, first, header.last_offset))
    return found


def done_end(log: Directory) -> int:
    return max((r.end_offset for r in log.reports if isinstance(r, GroupCleaned)), default=0)


@settings(max_examples=200)
@given(st.binary(min_size=61, max_size=200), st.integers(0, 5))
def test_any_bytes_are_scanned_or_refused_as_the_header_reader_does(noise: bytes, cut: int) -> None:
    content = bytes(batch_of([(b"k", b"v")], 0)) + noise
    content = content[: len(content) - cut]
    table = np.empty((len(content) // 61, BATCH_FIELDS), dtype=np.int64)
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
