import random
import struct
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import CorruptBatchError
from pipeline.records.batch import HEADER_SIZE, read_header, set_base_offset, set_log_append_time, write_header
from pipeline.records.builder import encode_varint
from pipeline.records.columns import ARROW_SCHEMA, RecordColumns, open_batches
from pipeline.records.compression import Codec, compress
from pipeline.records.record import Record, iterate_records

Build = Callable[..., bytearray]
FromColumns = Callable[[RecordColumns], list[Record]]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _with_payload(batch: bytearray, payload: bytes, **fields: int) -> bytearray:
    """The batch with other bytes for records, length and checksum as they should be."""
    changed = bytearray(batch[:HEADER_SIZE]) + payload
    write_header(changed, read_header(batch)._replace(batch_length=len(changed) - 12, **fields))
    return changed


def _outcome(read: Callable[[bytearray], list[Record]], data: bytearray) -> list[Record] | None:
    try:
        return read(data)
    except CorruptBatchError:
        return None


def _arrow_rows(records: list[Record], batches: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "offset": record.offset,
            "timestamp": EPOCH + timedelta(milliseconds=record.timestamp_ms),
            "timestamp_type": 0,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
            "batch": batch,
        }
        for record, batch in zip(records, batches, strict=True)
    ]


@pytest.mark.long
def test_builder_twin_columns_and_arrow_agree(
    build_batch: Build, records_of: Callable[..., Any], records_of_columns: FromColumns, generated_fields: Any
) -> None:
    @given(st.lists(st.tuples(generated_fields, st.sampled_from(Codec)), max_size=4))
    def check(batches: Any) -> None:
        buffer, records, indexes = bytearray(), [], []
        for index, (fields, codec) in enumerate(batches):
            batch = build_batch(fields, codec)
            set_base_offset(batch, 0, 100 * index)
            buffer += batch
            records += records_of(fields, 100 * index)
            indexes += [index] * len(fields)
        columns = open_batches(buffer)
        assert list(iterate_records(buffer)) == records
        assert records_of_columns(columns) == records
        assert columns.batch_index.tolist() == indexes
        table = columns.to_arrow()
        table.validate(full=True)
        assert table.schema == ARROW_SCHEMA
        sensible = [record.timestamp_ms < 2**46 for record in records]
        if all(sensible):
            assert table.to_pylist() == _arrow_rows(records, indexes)

    check()


def test_numbers_of_every_length_are_read_alike(
    build_batch: Build, records_of: Callable[..., Any], records_of_columns: FromColumns
) -> None:
    """Lengths, and deltas of offsets and timestamps, on both sides of each length of their encoding."""
    edges = [2**bits + step for bits in (6, 13, 20) for step in (-1, 0)]
    deltas = [sign * (edge + step) for edge in [*edges, 2**27, 2**40] for step in (0, 1) for sign in (1, -1)]
    fields: list[Any] = [(b"k" * edge, None, (), 2**50) for edge in edges] + [
        (None, b"v" * edge, (), 2**50) for edge in edges
    ]
    fields += [(None, b"", (("h", b"x" * 70),), 2**50 + delta) for delta in deltas]
    fields += [(b"", None, (), 2**50)] * 8200
    batch = build_batch(fields)
    assert list(iterate_records(batch)) == records_of(fields) == records_of_columns(open_batches(batch))


def test_plain_batches_are_not_copied(build_batch: Build, some_fields: Any) -> None:
    buffer = build_batch(some_fields) + build_batch(some_fields)
    columns = open_batches(buffer)
    assert columns.buffer.base is not None
    assert len(columns.buffer) == len(buffer)
    before = bytes(columns.buffer[columns.value.position[0] :][:5])
    buffer[columns.value.position[0]] ^= 0xFF
    assert bytes(columns.buffer[columns.value.position[0] :][:5]) != before == b"value"


@pytest.mark.parametrize("codec", Codec)
def test_log_append_time_and_types(build_batch: Build, some_fields: Any, codec: Codec) -> None:
    buffer = build_batch(some_fields, codec) + build_batch(some_fields, codec)
    set_log_append_time(buffer, len(buffer) // 2, 77)
    columns = open_batches(buffer)
    assert columns.timestamp.tolist() == [record.timestamp_ms for record in iterate_records(buffer)]
    assert columns.timestamp.tolist()[3:] == [77, 77, 77]
    assert columns.to_arrow().column("timestamp_type").to_pylist() == [0, 0, 0, 1, 1, 1]


def test_control_batches_are_listed_not_opened(build_batch: Build, some_fields: Any) -> None:
    plain = build_batch(some_fields)
    set_base_offset(plain, 0, 10)
    control = _with_payload(plain, b"anything", base_offset=13, attributes=0x30)
    columns = open_batches(plain + control)
    assert columns.offset.tolist() == [10, 11, 12] == [record.offset for record in iterate_records(plain + control)]
    assert [header.base_offset for header in columns.control_batches] == [13]
    assert columns.next_offset == 16
    assert open_batches(control).next_offset == 16
    assert len(open_batches(control).to_arrow().to_pylist()) == 0


def test_partial_batches_are_left_out_of_the_columns(build_batch: Build, some_fields: Any) -> None:
    batch = bytes(build_batch(some_fields))
    empty = open_batches(b"")
    assert (len(empty), empty.next_offset, empty.to_arrow().num_rows) == (0, None, 0)
    for size in range(len(batch)):
        assert len(open_batches(batch[:size])) == 0
        assert len(open_batches(batch + batch[:size])) == 3


def test_compacted_batches_keep_their_gaps(build_batch: Build, some_fields: Any) -> None:
    batch = build_batch(some_fields)
    changed = _with_payload(batch, bytes(batch[HEADER_SIZE:]), last_offset_delta=50, base_offset=7)
    columns = open_batches(changed)
    assert columns.offset.tolist() == [7, 8, 9]
    assert columns.next_offset == 58
    emptied = _with_payload(batch, b"", record_count=0)
    assert len(open_batches(emptied)) == 0 == len(list(iterate_records(emptied)))


def test_rows_between_two_offsets_keep_their_headers(
    build_batch: Build, some_fields: Any, records_of_columns: FromColumns
) -> None:
    first, second = build_batch(some_fields), build_batch(some_fields, Codec.ZSTD)
    set_base_offset(second, 0, 3)
    columns = open_batches(first + second)
    records = list(iterate_records(first + second))
    for start in range(-1, 8):
        for end in range(-1, 8):
            part = columns.between(start, end)
            wanted = [record for record in records if start <= record.offset < end]
            assert records_of_columns(part) == wanted
            part.to_arrow().validate(full=True)
            assert part.to_arrow().to_pylist() == _arrow_rows(wanted, [record.offset // 3 for record in wanted])


def test_a_flipped_bit_is_seen(build_batch: Build, some_fields: Any) -> None:
    batch = build_batch(some_fields, Codec.LZ4)
    for position in range(17, len(batch)):
        batch[position] ^= 0x10
        with pytest.raises(CorruptBatchError):
            open_batches(batch)
        with pytest.raises(CorruptBatchError):
            list(iterate_records(batch))
        batch[position] ^= 0x10


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_hostile_records_are_judged_alike(
    build_batch: Build, some_fields: Any, records_of_columns: FromColumns, seed: int
) -> None:
    """Damage under a true checksum: the kernel and its twin read the same or refuse both."""
    batch = build_batch(some_fields)
    payload = bytes(batch[HEADER_SIZE:])
    source = random.Random(seed)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(payload)
        for _ in range(source.randint(1, 3)):
            damaged[source.randrange(len(damaged))] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
        hostile = _with_payload(batch, bytes(damaged[: source.choice((len(damaged), source.randrange(len(damaged))))]))
        by_twin = _outcome(lambda data: list(iterate_records(data)), hostile)
        by_kernel = _outcome(lambda data: records_of_columns(open_batches(data)), hostile)
        assert by_twin == by_kernel
        refused += by_twin is None
    assert 500 < refused < 1500


@given(payload=st.binary(max_size=60), record_count=st.integers(0, 3), codec=st.sampled_from((Codec.NONE, Codec.ZSTD)))
def test_random_records_are_judged_alike(payload: bytes, record_count: int, codec: Codec) -> None:
    batch = bytearray(HEADER_SIZE)
    write_header(batch, _EMPTY._replace(attributes=int(codec), record_count=record_count, base_timestamp=2**63 - 3))
    hostile = _with_payload(batch, bytes(compress(codec, payload)))
    by_twin = _outcome(lambda data: list(iterate_records(data)), hostile)
    try:
        by_kernel = open_batches(hostile).offset.tolist()
    except CorruptBatchError:
        by_kernel = None
    assert by_kernel == (None if by_twin is None else [record.offset for record in by_twin])


_EMPTY = read_header(struct.pack(">qiibIhiqqqhii", 0, 49, -1, 2, 0, 0, 9, 0, 0, -1, -1, -1, 0))


@pytest.mark.parametrize(
    "record",
    [
        b"\x80\x80\x80\x80\x80\x00",
        b"\x80" * 11 + b"\x00",
        encode_varint(2**31 - 1),
        encode_varint(2**40),
        encode_varint(-5),
        b"",
        bytes([16, 0]) + b"\xff" * 20,
        bytes([18, 0, 0, 0, 1, 1, 0xFE, 0xFF, 0xFF]),
        bytes([14, 0, 0, 0, 1, 1, 2, 1]),
        bytes([14, 0, 0, 0, 1, 1, 1, 0]),
        bytes([18, 0, 0, 0, 1, 1, 2, 1, 1, 0]),
        bytes([18, 0, 0, 0, 1, 1, 2, 0, 9, 0]),
        bytes([12, 0, 0, 20, 1, 1, 0]),
        bytes([12, 0, 0, 1, 1, 1, 0]),
        bytes([12, 0, 0, 0, 3, 1, 0]),
        bytes([12, 0, 0, 0, 1, 40, 0]),
        bytes([30, 0]) + encode_varint(2**63 - 1) + bytes([0, 1, 1, 0]),
    ],
)
def test_broken_records_are_refused(record: bytes) -> None:
    batch = bytearray(HEADER_SIZE)
    write_header(batch, _EMPTY._replace(record_count=1, base_timestamp=10))
    for payload in (record, record + b"\x00" * 10):
        hostile = _with_payload(batch, payload)
        with pytest.raises(CorruptBatchError):
            open_batches(hostile)
        with pytest.raises(CorruptBatchError):
            list(iterate_records(hostile))


def test_record_counts_without_records_allocate_nothing(build_batch: Build, some_fields: Any) -> None:
    batch = build_batch(some_fields, Codec.ZSTD)
    hostile = _with_payload(batch, bytes(batch[HEADER_SIZE:]), record_count=2**31 - 1, last_offset_delta=2**31 - 1)
    for read in (open_batches, lambda buffer: list(iterate_records(buffer))):
        with pytest.raises(CorruptBatchError, match="records in"):
            read(hostile)


def test_bombs_are_bounded_over_all_batches(build_batch: Build) -> None:
    batch = build_batch([(None, bytes(100_000), (), 1)], Codec.ZSTD)
    assert len(open_batches(batch * 9, max_bytes=1_000_000)) == 9
    with pytest.raises(CorruptBatchError):
        open_batches(batch * 10, max_bytes=1_000_000)
    with pytest.raises(ValueError, match="too many"):
        open_batches(batch, max_bytes=2**31 - 1)


def test_header_keys_that_are_no_text_are_replaced(build_batch: Build) -> None:
    batch = build_batch([(None, None, (("ab", b"1"), ("cd", None)), 1)])
    hostile = _with_payload(batch, bytes(batch[HEADER_SIZE:]).replace(b"ab", b"\xff\xfe"))
    table = open_batches(hostile).to_arrow()
    table.validate(full=True)
    (record,) = iterate_records(hostile)
    assert record.headers == (("\ufffd\ufffd", b"1"), ("cd", None))
    assert table.column("headers").to_pylist() == [
        [{"key": "\ufffd\ufffd", "value": b"1"}, {"key": "cd", "value": None}]
    ]


def test_a_column_of_nulls_stays_null_beside_full_columns(build_batch: Build) -> None:
    table = open_batches(build_batch([(None, b"v", (), 1)] * 9)).to_arrow()
    assert table.column("key").to_pylist() == [None] * 9
    assert table.column("value").to_pylist() == [b"v"] * 9
    assert isinstance(table, pa.RecordBatch)


def test_buffers_of_every_kind_are_opened_alike(build_batch: Build, some_fields: Any) -> None:
    batch = build_batch(some_fields)
    for buffer in (batch, bytes(batch), memoryview(batch), memoryview(bytes(batch)), memoryview(b"x" + batch)[1:]):
        assert np.array_equal(open_batches(buffer).offset, [0, 1, 2])


def test_the_light_modules_load_no_heavy_library() -> None:
    program = (
        "import sys, pipeline.records.record, pipeline.records.builder, pipeline.records.batch\n"
        "print(sorted({'numpy', 'numba', 'pyarrow', 'lz4', 'zstandard', 'cramjam'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[]"
