"""Batches of aiokafka and kafka-python are read equal by us, and ours by them.

kafka-python's snappy needs a library of its own (python-snappy); that codec is shown with aiokafka here.
"""

import importlib
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.records.batch import place_batch, set_base_offset, set_log_append_time, validate_for_append
from pipeline.records.builder import BatchBuilder
from pipeline.records.columns import open_batches
from pipeline.records.compression import Codec
from pipeline.records.record import Record, iterate_records


def _peer(package: str) -> tuple[Any, Any, Any]:
    """Builder, batch and records classes of a package. kafka-python warns of its own old-fashioned ways at import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        batches = importlib.import_module(f"{package}.record.default_records")
        records = importlib.import_module(f"{package}.record.memory_records")
    return batches.DefaultRecordBatchBuilder, batches.DefaultRecordBatch, records.MemoryRecords


PEERS = [
    pytest.param(*_peer(package), codec, id=f"{package}-{codec.name}")
    for package in ("aiokafka", "kafka")
    for codec in Codec
    if (package, codec) != ("kafka", Codec.SNAPPY)
]

_values = st.none() | st.binary(max_size=100) | st.integers(1, 80_000).map(lambda size: b"log line " * (size // 9))
_headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3)
_fields = st.tuples(st.none() | st.binary(max_size=20), _values, _headers, st.integers(0, 2**45))
_field_lists = st.lists(_fields, min_size=1, max_size=30)


def _ours(fields: Any, codec: Codec) -> bytearray:
    builder = BatchBuilder(codec, 1 << 30)
    for key, value, headers, timestamp_ms in fields:
        assert builder.append(key, value, headers, timestamp_ms)
    return builder.build(77, 3, 500)


def _theirs(builder_class: Any, fields: Any, codec: Codec) -> bytearray:
    builder = builder_class(2, codec.value, False, 77, 3, 500, 1 << 30)
    for offset, (key, value, headers, timestamp_ms) in enumerate(fields):
        assert builder.append(offset, timestamp_ms, key, value, headers)
    return bytearray(builder.build())


def _records(fields: Any) -> list[Record]:
    return [
        Record(offset, timestamp_ms, key, value, tuple(headers))
        for offset, (key, value, headers, timestamp_ms) in enumerate(fields)
    ]


def _of_peer(record: Any) -> Record:
    return Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))


@pytest.mark.parametrize(("builder_class", "batch_class", "records_class", "codec"), PEERS)
def test_our_batches_equal_those_of_other_clients(
    builder_class: Any, batch_class: Any, records_class: Any, codec: Codec
) -> None:
    @settings(max_examples=40)
    @given(_field_lists)
    def check(fields: Any) -> None:
        records = _records(fields)
        theirs = _theirs(builder_class, fields, codec)
        (header,) = validate_for_append(theirs, max_batch_bytes=1 << 30)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 500)
        assert header.max_timestamp == max(record.timestamp_ms for record in records)
        assert list(iterate_records(theirs)) == records
        rows = open_batches(theirs).to_arrow().to_pylist()
        assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
            (record.offset, record.key, record.value) for record in records
        ]

        ours = _ours(fields, codec)
        batch = batch_class(bytes(ours))
        assert batch.validate_crc()
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 3, 500)
        assert [_of_peer(record) for record in batch] == records
        if codec is Codec.NONE:
            place_batch(theirs, 0, 0, -1)
            assert ours == theirs

    check()


@pytest.mark.parametrize(("builder_class", "batch_class", "records_class", "codec"), PEERS)
def test_patched_batches_are_read_by_other_clients(
    builder_class: Any, batch_class: Any, records_class: Any, codec: Codec
) -> None:
    first = _ours([(b"a", b"1" * 1000, [("h", b"x")], 5), (None, None, [], 9)], codec)
    second = _theirs(builder_class, [(b"b", b"2", [], 7)], codec)
    log = first + second
    set_base_offset(log, 0, 1000)
    place_batch(log, len(first), 1002, 12)
    set_log_append_time(log, len(first), 999)
    peer = records_class(bytes(log))
    found = []
    while peer.has_next():
        batch = peer.next_batch()
        assert batch.validate_crc()
        found += [_of_peer(record) for record in batch]
    assert found == list(iterate_records(log))
    assert [(record.offset, record.timestamp_ms) for record in found] == [(1000, 5), (1001, 9), (1002, 999)]
