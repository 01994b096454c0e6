from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.producer.partitioner import partition_for_key
from pipeline.records.builder import MAX_TIMESTAMP_MS, BatchBuilder
from pipeline.records.column_builder import (
    COLUMNS,
    EncodableRows,
    build_batch,
    header_column,
    partitions_for_keys,
    row_sizes,
)
from pipeline.records.compression import Codec

HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=200)), max_size=2).map(tuple)
BYTES = st.none() | st.binary(max_size=200)
HEADER_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


@given(st.lists(st.tuples(BYTES, BYTES, HEADERS), min_size=1, max_size=80), st.integers(0, 3), st.booleans())
def test_a_batch_from_columns_is_the_batch_of_its_records(rows: list[Any], dropped: int, compressed: bool) -> None:
    codec = Codec.LZ4 if compressed else Codec.NONE
    headers = pa.array([[{"key": key, "value": value} for key, value in row[2]] for row in rows], HEADER_TYPE)
    keys, values = (pa.array([row[index] for row in rows], pa.binary()) for index in (0, 1))
    columns = pa.RecordBatch.from_arrays([keys, values, header_column(headers, len(rows))], schema=COLUMNS)
    start = min(dropped, len(rows) - 1)
    builder = BatchBuilder(codec, 1 << 20)
    for key, value, pairs in rows[start:]:
        assert builder.append(key, value, pairs, 1_700_000_000_000)
    before = builder.size_bytes
    sliced = columns.slice(start)
    built = build_batch(
        sliced, codec=codec, timestamp_ms=1_700_000_000_000, producer_id=7, producer_epoch=3, base_sequence=11
    )
    assert bytes(built) == bytes(builder.build(7, 3, 11))
    assert row_sizes(sliced).sum() >= before - 61


@given(st.lists(BYTES, min_size=1), st.integers(1, 9))
def test_partitions_are_those_of_the_java_client(keys: list[Any], count: int) -> None:
    expected = [count + 5 if key is None else partition_for_key(key, count) for key in keys]
    assert partitions_for_keys(pa.array(keys, pa.binary()), count + 5, count).tolist() == expected


TIMES = st.integers(-MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS) | st.integers(1_700_000_000_000, 1_700_000_009_000)
ROWS = st.lists(st.tuples(BYTES, BYTES, HEADERS, TIMES, st.integers(0, 2)), min_size=1, max_size=60)


@given(ROWS, HEADERS, st.integers(60, 700), st.none() | st.integers(1, 5000))
def test_rows_in_any_order_become_the_batches_of_their_records(
    rows: list[Any], added: Any, max_bytes: int, window_ms: int | None
) -> None:
    headers = pa.array([[{"key": key, "value": value} for key, value in row[2]] for row in rows], HEADER_TYPE)
    keys, values = (pa.array([row[index] for row in rows], pa.binary()) for index in (0, 1))
    encoded = header_column(headers, len(rows), added)
    columns = pa.RecordBatch.from_arrays([keys, values, encoded], schema=COLUMNS)
    times = np.array([row[3] for row in rows], dtype=np.int64)
    partitions = np.array([row[4] for row in rows], dtype=np.int32)
    order = np.argsort(partitions, kind="stable")
    encodable = EncodableRows(columns, times)
    ends, sizes = encodable.cut(order, partitions, max_bytes, window_ms)
    assert ends[-1] == len(rows)
    start = 0
    for end, size in zip(ends.tolist(), sizes.tolist(), strict=True):
        chosen = [rows[row] for row in order[start:end]]
        builder = BatchBuilder(Codec.NONE, 1 << 20)
        for key, value, pairs, time, _ in chosen:
            assert builder.append(key, value, (*pairs, *added), time)
        assert bytes(encodable.build(order[start:end], size, codec=Codec.NONE)) == bytes(builder.build())
        assert size <= max_bytes or len(chosen) == 1
        assert len({row[4] for row in chosen}) == 1
        assert window_ms is None or len({row[3] // window_ms for row in chosen}) == 1
        start = end
