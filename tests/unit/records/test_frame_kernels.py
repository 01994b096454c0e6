"""Schema ids as columns, against a plain reading of each record."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.broker.contract.frames import FrameReader
from pipeline.errors import CorruptBatchError
from pipeline.records.batch import HEADER_SIZE, BatchHeader, read_header, write_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.frame_kernels import KEY, NO_FIELD, NO_ID, VALUE, read_frames
from pipeline.records.record import Record, iterate_records

NAMES = {KEY: "__key_schema_id", VALUE: "__value_schema_id"}
Found = list[tuple[str, Any, bytes | None]]


def plain(record: Record, side: int) -> tuple[str, Any, bytes | None]:
    """What one side of a record bears, the slow way: kind, id, datum."""
    field = record.key if side == KEY else record.value
    if field is None:
        return "null", None, None
    named = [value for name, value in record.headers if name == NAMES[side]]
    if named:
        frame = named[-1] or b""
        if len(frame) == 17 and frame[0] == 1:
            return "guid", frame[1:], field
        if len(frame) == 5 and frame[0] == 0 and frame[1] < 128:
            return "id", struct.unpack(">i", frame[1:])[0], field
        return "bare", None, None
    if len(field) >= 5 and field[0] == 0 and field[1] < 128:
        return "id", struct.unpack(">i", field[1:5])[0], field[5:]
    return "bare", None, None


def by_kernel(payload: bytes, header: BatchHeader, side: int, read: Callable[..., int] = read_frames) -> Found:
    reader = FrameReader(read)
    found: dict[int, tuple[str, Any, bytes | None]] = {}
    for first in reader.chunks(payload, header, 1 << side):

        def datum(row: int) -> bytes:
            return reader.buffer[reader.starts[side, row] : reader.ends[side, row]].tobytes()

        for place, schema in enumerate(reader.schemas(side)):
            kind = "guid" if isinstance(schema, bytes) else "id"
            for row in reader.rows_of(side, place).tolist():
                found[first + row] = (kind, schema, datum(row))
        bare = reader.rows_of(side, NO_ID).tolist()
        assert bool(bare) == reader.lacks_ids(side)
        for row in bare:
            found[first + row] = ("bare", None, None)
        for row in reader.rows_of(side, NO_FIELD).tolist():
            found[first + row] = ("null", None, None)
    return [found[row] for row in sorted(found)]


def ids(schema_ids: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    return st.tuples(schema_ids, st.binary(max_size=10)).map(lambda both: struct.pack(">bi", 0, both[0]) + both[1])


frames = ids(st.integers(0, 3)) | ids(st.integers(-(2**31), 2**31 - 1)) | st.binary(max_size=8) | st.none()
guids = st.sampled_from([b"a" * 16, b"a" * 15 + b"b"]) | st.binary(min_size=16, max_size=16)
header_values = guids.map(lambda guid: b"\1" + guid) | frames
headers = st.lists(
    st.tuples(st.sampled_from([*NAMES.values(), "trace", "__value_schema_iD", ""]), header_values), max_size=3
).map(tuple)
records = st.lists(st.tuples(frames, frames, headers, st.integers(0, 100)), min_size=1, max_size=60)


def built(fields: Any) -> tuple[bytearray, BatchHeader]:
    builder = BatchBuilder(Codec.NONE, 1 << 30)
    for key, value, record_headers, timestamp_ms in fields:
        assert builder.append(key, value, record_headers, timestamp_ms)
    batch = builder.build()
    return batch, read_header(batch)


@given(records, st.sampled_from([KEY, VALUE]))
def test_the_kernel_reads_what_a_plain_reader_reads(fields: Any, side: int) -> None:
    batch, header = built(fields)
    assert by_kernel(bytes(batch[HEADER_SIZE:]), header, side) == [
        plain(record, side) for record in iterate_records(batch)
    ]


@given(
    records,
    st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=6), st.integers(0, 6)), min_size=1, max_size=3),
)
def test_hostile_payloads_are_refused_as_by_the_plain_reader(fields: Any, cuts: Any) -> None:
    """Bytes are replaced, inserted and cut; checksum and length are right, as a hostile client would send them."""
    batch, header = built(fields)
    payload = bytearray(batch[HEADER_SIZE:])
    for at, put, gone in cuts:
        at %= len(payload) + 1
        payload[at : at + gone] = put
    changed = bytearray(batch[:HEADER_SIZE]) + payload
    header = header._replace(batch_length=len(changed) - 12)
    write_header(changed, header)
    try:
        expected = [plain(record, VALUE) for record in iterate_records(changed)]
    except CorruptBatchError:
        with pytest.raises(CorruptBatchError):
            by_kernel(bytes(payload), header, VALUE)
    else:
        assert by_kernel(bytes(payload), header, VALUE) == expected


@given(records, st.integers(0, 5000))
def test_a_payload_that_is_cut_off_is_refused(fields: Any, size: int) -> None:
    batch, header = built(fields)
    payload = bytes(batch[HEADER_SIZE:])
    with pytest.raises(CorruptBatchError):
        by_kernel(payload[: size % len(payload)], header, VALUE)


def test_more_records_and_ids_than_a_chunk_holds() -> None:
    fields = [(None, struct.pack(">bi", 0, number % 150 if number < 5000 else 7), (), 0) for number in range(12_000)]
    batch, header = built(fields)
    found = by_kernel(bytes(batch[HEADER_SIZE:]), header, VALUE)
    assert found == [plain(record, VALUE) for record in iterate_records(batch)]


def test_the_twin_without_machine_code_agrees() -> None:
    fields = [(b"k", b"\0\0\0\0\5x", (("__value_schema_id", b"\1" + bytes(range(16))),), 5), (None, None, (), 6)]
    batch, header = built(fields)
    payload = bytes(batch[HEADER_SIZE:])
    assert by_kernel(payload, header, VALUE, read_frames.py_func) == by_kernel(payload, header, VALUE)
