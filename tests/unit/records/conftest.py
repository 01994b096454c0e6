"""Generated records and the batches made of them."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import strategies as st

from pipeline.records.builder import BatchBuilder
from pipeline.records.columns import Fields as ColumnFields
from pipeline.records.columns import RecordColumns
from pipeline.records.compression import Codec
from pipeline.records.record import Record

Fields = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]

nullable_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=20), nullable_bytes), max_size=4).map(tuple)
timestamps = st.integers(0, 2**50) | st.integers(-1, 1000)
fields = st.tuples(nullable_bytes, nullable_bytes, headers, timestamps)
field_lists = st.lists(fields, min_size=1, max_size=20)


def build(records: Sequence[Fields], codec: Codec = Codec.NONE) -> bytearray:
    builder = BatchBuilder(codec, 1 << 30)
    for record in records:
        assert builder.append(*record)
    return builder.build()


def expected(records: Sequence[Fields], base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + index, timestamp_ms, key, value, record_headers)
        for index, (key, value, record_headers, timestamp_ms) in enumerate(records)
    ]


@pytest.fixture(scope="session")
def build_batch() -> Callable[..., bytearray]:
    return build


@pytest.fixture(scope="session")
def records_of() -> Callable[..., list[Record]]:
    return expected


@pytest.fixture(scope="session")
def some_fields() -> list[Fields]:
    return [
        (b"key", b"value", (("host", b"a1"), ("empty", None)), 1_700_000_000_000),
        (None, b"x" * 300, (), 1_699_999_999_000),
        (b"", None, (("", b""),), 1_700_000_100_000),
    ]


@pytest.fixture(scope="session")
def generated_fields() -> st.SearchStrategy[list[Fields]]:
    return field_lists


def _read(columns: RecordColumns, fields: ColumnFields, row: int) -> bytes | None:
    position, length = int(fields.position[row]), int(fields.length[row])
    assert 0 <= position <= position + max(length, 0) <= len(columns.buffer)
    return None if length < 0 else bytes(columns.buffer[position : position + length])


def from_columns(columns: RecordColumns) -> list[Record]:
    records = []
    for row in range(len(columns)):
        pairs = range(columns.header_index[row], columns.header_index[row + 1])
        record_headers = tuple(
            (
                (_read(columns, columns.header_key, pair) or b"").decode(errors="replace"),
                _read(columns, columns.header_value, pair),
            )
            for pair in pairs
        )
        records.append(
            Record(
                int(columns.offset[row]),
                int(columns.timestamp[row]),
                _read(columns, columns.key, row),
                _read(columns, columns.value, row),
                record_headers,
            )
        )
    return records


@pytest.fixture(scope="session")
def records_of_columns() -> Callable[[RecordColumns], list[Record]]:
    return from_columns
