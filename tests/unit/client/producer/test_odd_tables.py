"""Tables as Arrow allows them become the records of their rows: types, nulls over bytes, slices, chunks."""

import mmap
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.columns import build_piece, pieces_of, sticky_count
from pipeline.client.producer.partitioner import partition_for_key
from pipeline.records.compression import Codec
from pipeline.records.record import Record, iterate_records

NOW_MS = 1_700_000_000_000
PARTITIONS = 3
TEXT = st.none() | st.text(max_size=3) | st.text("aä", min_size=100, max_size=300)
PAIRS = st.none() | st.lists(st.tuples(st.text(max_size=3), TEXT), max_size=3)
ROW = st.tuples(TEXT, TEXT, PAIRS, st.none() | st.integers(-(2**40), 2**40), st.none() | st.integers(0, PARTITIONS - 1))
BINARY = (
    pa.binary(),
    pa.string(),
    pa.large_binary(),
    pa.large_string(),
    pa.binary_view(),
    pa.string_view(),
)
PAIR_TYPES = st.tuples(st.sampled_from(BINARY[1:4:2]), st.sampled_from(BINARY[:4]))
TIMES = st.sampled_from(
    (pa.int64(), *(pa.timestamp(unit, zone) for unit in ("ms", "us", "ns") for zone in (None, "Europe/Paris")))
)
NUMBERS = st.sampled_from((pa.int8(), pa.uint16(), pa.int64(), pa.uint64()))


def of_type(texts: list[str | None], data_type: pa.DataType) -> pa.Array:
    encoded = pa.array([None if text is None else text.encode() for text in texts], pa.binary())
    typed: pa.Array = (encoded.cast(pa.string()) if pa.types.is_string_view(data_type) else encoded).cast(data_type)
    return typed


def with_bytes_below_nulls(array: pa.Array) -> pa.Array:
    """The same array, whose nulls hide bytes of the data, as a filter in place may leave them."""
    if array.type not in (pa.binary(), pa.string()) or not len(array):
        return array
    validity = pa.array(array.is_valid()).buffers()[1]
    filled = array.fill_null("hidden" if array.type == pa.string() else b"hidden")
    return pa.Array.from_buffers(array.type, len(array), [validity, *filled.buffers()[1:]])


def pair_of(key_type: pa.DataType, value_type: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field("key", key_type), pa.field("value", value_type)])


def headers_of(rows: list[Any], types: tuple[pa.DataType, pa.DataType], kind: Any) -> pa.Array:
    pairs = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
    plain = pa.array(pairs, pa.list_(pair_of(pa.string(), pa.string())))
    headers: pa.Array = plain.cast(kind(pair_of(*types)))
    return headers


def times_of(times: list[int | None], data_type: pa.DataType) -> pa.Array:
    if not pa.types.is_timestamp(data_type):
        return pa.array(times, data_type)
    factor = {"ms": 1, "us": 1000, "ns": 1_000_000}[data_type.unit]
    scaled = pa.array([None if time is None else time * factor for time in times], pa.int64())
    typed: pa.Array = scaled.cast(data_type)
    return typed


def sent(table: pa.Table, config: ProducerConfig) -> list[tuple[int, int, Record]]:
    """Partition, row and record of what is sent, batch by batch."""
    found = []
    for piece in pieces_of(table, config, NOW_MS, config.max_request_size):
        sticky = [number % PARTITIONS for number in range(sticky_count(piece, config))]
        for built in build_piece(piece, config, PARTITIONS, sticky, config.max_request_size):
            records = list(iterate_records(built.data))
            assert len(records) == len(built.rows)
            found += [(built.partition, int(row), r) for row, r in zip(built.rows, records, strict=True)]
    return found


@given(
    st.lists(ROW, max_size=30),
    st.tuples(st.sampled_from(BINARY), st.sampled_from(BINARY), PAIR_TYPES, TIMES, NUMBERS),
    st.sampled_from((pa.list_, pa.large_list)),
    st.lists(st.integers(0, 30), max_size=4),
    st.sampled_from((60, 400, 1 << 20)),
)
def test_every_row_becomes_its_record(rows: Any, types: Any, kind: Any, cuts: Any, batch_size: int) -> None:
    value_type, key_type, pair_types, time_type, number_type = types
    columns = {
        "value": with_bytes_below_nulls(of_type([row[0] for row in rows], value_type)),
        "key": with_bytes_below_nulls(of_type([row[1] for row in rows], key_type)),
        "headers": headers_of([row[2] for row in rows], pair_types, kind),
        "timestamp": times_of([row[3] for row in rows], time_type),
        "partition": pa.array([row[4] for row in rows], number_type),
    }
    batch = pa.record_batch(columns)
    places = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    slices = [batch.slice(start, end - start) for start, end in pairwise(places)]
    table = pa.Table.from_batches(slices, batch.schema).slice(1)
    config = ProducerConfig(batch_size=batch_size, compression=Codec.NONE, buffer_memory=1 << 21)
    found = sent(table, config)
    assert sorted(row for _, row, _ in found) == list(range(len(rows[1:])))
    for partition, number, record in found:
        value, key, pairs, time, named = rows[1 + number]
        assert record.value == (None if value is None else value.encode())
        assert record.key == (None if key is None else key.encode())
        assert record.timestamp_ms == (NOW_MS if time is None else time)
        assert record.headers == tuple((name, None if text is None else text.encode()) for name, text in pairs or ())
        if named is not None:
            assert partition == named
        elif key is not None:
            assert partition == partition_for_key(key.encode(), PARTITIONS)
    for partition in range(PARTITIONS):
        in_order = [row for place, row, _ in found if place == partition]
        assert in_order == sorted(in_order)


@pytest.mark.parametrize("is_fixed", [True, False])
def test_rows_behind_two_gib_of_others_are_sent(is_fixed: bool) -> None:
    """Where offsets of 32 bits end. Nearly all of the memory is never touched."""
    size, rows = 1_000_000, 2300
    memory = mmap.mmap(-1, rows * size)
    memory[-3 * size : -2 * size] = b"a" * size
    memory[-1:] = b"z"
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int64) * size)
    buffers, data_type = ([None, offsets], pa.large_binary()) if not is_fixed else ([None], pa.binary(size))
    column = pa.Array.from_buffers(data_type, rows, [*buffers, pa.py_buffer(memory)])
    config = ProducerConfig(max_request_size=1 << 21)
    found = sent(pa.table({"value": column}).slice(rows - 3), config)
    assert [record.value for _, _, record in found] == [b"a" * size, bytes(size), bytes(size - 1) + b"z"]
