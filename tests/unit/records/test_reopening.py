import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import CorruptBatchError
from pipeline.records.batch import HEADER_SIZE, LOG_OVERHEAD, read_header, verify_crc, write_crc, write_header
from pipeline.records.builder import BatchBuilder, encode_varint
from pipeline.records.columns import open_batches
from pipeline.records.compression import Codec
from pipeline.records.record import MAX_UNCOMPRESSED_BYTES, iterate_records
from pipeline.records.reopening import close_payload, payload_pieces, scan_records
from tests.support.steps import to_end

RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
        st.integers(-1, 2**42),
    ),
    min_size=1,
    max_size=20,
)
LEVELS = {Codec.NONE: None, Codec.GZIP: 9, Codec.SNAPPY: None, Codec.LZ4: 17, Codec.ZSTD: -5}

RecordFields = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int]


def _batch(records: list[RecordFields], codec: Codec = Codec.NONE) -> bytearray:
    builder = BatchBuilder(codec, MAX_UNCOMPRESSED_BYTES)
    for key, value, headers, timestamp in records:
        assert builder.append(key, value, headers, timestamp)
    return builder.build(77, 3, 500)


@settings(max_examples=40)
@given(RECORDS, st.sampled_from(Codec), st.sampled_from(Codec))
def test_a_batch_in_another_codec_is_the_same_batch(records: list[RecordFields], before: Codec, after: Codec) -> None:
    batch = _batch(records, before)
    header = read_header(batch)
    size = sum(map(len, payload_pieces(batch, header, MAX_UNCOMPRESSED_BYTES)))
    pieces = payload_pieces(batch, header, MAX_UNCOMPRESSED_BYTES)
    made = to_end(
        close_payload(pieces, header, after, LEVELS[after], size_bytes=size, max_batch_bytes=MAX_UNCOMPRESSED_BYTES)
    )
    changed = read_header(made)
    verify_crc(made, 0, changed)
    assert changed.codec is after
    same = {"batch_length": 0, "attributes": 0, "crc": 0}
    assert changed._replace(**same) == header._replace(**same)
    assert list(iterate_records(made)) == list(iterate_records(batch))


@settings(max_examples=40)
@given(RECORDS)
def test_a_scan_sees_times_and_keys(records: list[RecordFields]) -> None:
    batch = _batch(records)
    seen = list(scan_records([bytes(batch[HEADER_SIZE:])], read_header(batch)))
    assert seen == [(timestamp, index, key is not None) for index, (key, _, _, timestamp) in enumerate(records)]


@settings(max_examples=60)
@given(RECORDS, st.binary(max_size=20), st.integers(0, 60), st.integers(0, 60), st.integers(1, 70))
def test_a_scan_of_pieces_sees_what_a_scan_of_the_whole_sees(
    records: list[Any],
    noise: bytes,
    start: int,
    end: int,
    size: int,
) -> None:
    batch = _batch(records)
    header = read_header(batch)
    whole = batch[HEADER_SIZE:]
    whole[start:end] = noise
    seen = []
    for pieces in ([bytes(whole)], [bytes(whole[at : at + size]) for at in range(0, len(whole), size)]):
        found: list[object] = []
        try:
            found += scan_records(pieces, header)
        except CorruptBatchError:
            found = [CorruptBatchError]
        seen.append(found)
    assert seen[0] == seen[1]


@settings(max_examples=100)
@given(RECORDS, st.binary(max_size=20), st.integers(0, 60), st.integers(0, 60))
def test_hostile_payloads_are_refused_or_scanned(
    records: list[RecordFields], noise: bytes, start: int, end: int
) -> None:
    batch = _batch(records)
    payload = bytearray(batch[HEADER_SIZE:])
    payload[start:end] = noise
    with contextlib.suppress(CorruptBatchError):
        assert len(list(scan_records([bytes(payload)], read_header(batch)))) == len(records)


@pytest.mark.parametrize("payload", [b"", b"\x0e\0\0\0\1\1\0", b"\x0c\0\0\0\1\1", b"\x0c\0\0\2\1\1\0", b"\xff" * 20])
def test_records_that_do_not_fill_the_payload_are_corrupt(payload: bytes) -> None:
    header = read_header(_batch([(None, None, [], 5)]))
    with pytest.raises(CorruptBatchError):
        list(scan_records([payload], header))


UNSOUND = {
    "a value that ends behind its record": (b"\x0e\0\0\0\1\x08\0\0", 0),
    "a value of a negative length": (b"\x0e\0\0\0\1\x03\0\0", 0),
    "no length of the value": (b"\x0c\0\0\0\3\0\0", 0),
    "a key of a negative length": (b"\x0e\0\0\0\3\0\0\0", 0),
    "a length of more bytes than a number has": (b"\x18\0\0\0\1\x80\x80\x80\x80\x80\0\0\0", 0),
    "a length of more bits than a number has": (b"\x16\0\0\0\1\x80\x80\x80\x80\x70\0\0", 0),
    "a time after all times": (b"\x0e\0\2\0\1\0\0\0", 2**63 - 1),
    "a time before all times": (b"\x0e\0\1\0\1\0\0\0", -(2**63)),
}


@pytest.mark.parametrize(("payload", "base_timestamp"), UNSOUND.values(), ids=UNSOUND)
def test_a_scan_refuses_what_no_cleaner_opens(payload: bytes, base_timestamp: int) -> None:
    header = read_header(_batch([(None, None, [], 5)]))._replace(base_timestamp=base_timestamp)
    for pieces in ([payload], [payload[at : at + 1] for at in range(len(payload))]):
        with pytest.raises(CorruptBatchError):
            list(scan_records(pieces, header))


HEADERS_UNSOUND = {
    "more headers than bytes": b"\x02\0",
    "a negative number of headers": b"\x01\0",
    "a number of headers that is cut off": b"\xff",
    "a number of headers of too many bytes": b"\x80\x80\x80\x80\x80\x01",
    "bytes where there are no headers": b"\0\0",
    "a name of a negative length": b"\x02\x01\0",
    "a name that ends behind its record": b"\x02\x08\0",
    "a value of a length below that of null": b"\x02\0\x03",
    "a value that ends behind its record": b"\x02\0\x08",
    "bytes behind the last header": b"\x02\x02a\0\0",
    "a header that is missing": b"\x04\x02a\0\0",
}


@pytest.mark.parametrize("headers", HEADERS_UNSOUND.values(), ids=HEADERS_UNSOUND)
@pytest.mark.parametrize("value", [b"", b"v" * 100])
def test_a_scan_refuses_headers_that_no_reader_opens(headers: bytes, value: bytes) -> None:
    record = b"\0\0\0\2k" + encode_varint(len(value)) + value + headers
    payload = encode_varint(len(record)) + record
    header = read_header(_batch([(None, None, [], 5)]))
    batch = bytearray(HEADER_SIZE) + payload
    write_header(batch, header._replace(batch_length=len(batch) - LOG_OVERHEAD))
    write_crc(batch, 0, len(batch))
    with pytest.raises(CorruptBatchError):
        open_batches(batch)
    for pieces in ([payload], [payload[:-1], payload[-1:]], [payload[at : at + 1] for at in range(len(payload))]):
        with pytest.raises(CorruptBatchError):
            list(scan_records(pieces, header, checks_headers=True))


@pytest.mark.long
@settings(max_examples=100)
@given(RECORDS, st.binary(max_size=6), st.integers(0, 200), st.integers(0, 6), st.integers(1, 70))
def test_a_scan_of_headers_agrees_with_readers(
    records: list[Any],
    noise: bytes,
    start: int,
    length: int,
    size: int,
) -> None:
    batch = _batch(records)
    payload = batch[HEADER_SIZE:]
    payload[start : start + length] = noise
    batch[HEADER_SIZE:] = payload
    write_header(batch, read_header(batch)._replace(batch_length=len(batch) - LOG_OVERHEAD))
    write_crc(batch, 0, len(batch))
    is_readable = True
    try:
        open_batches(batch)
    except CorruptBatchError:
        is_readable = False
    try:
        pieces = [bytes(payload[at : at + size]) for at in range(0, len(payload), size)]
        list(scan_records(pieces, read_header(batch), checks_headers=True))
    except CorruptBatchError:
        assert not is_readable
    else:
        assert is_readable


def test_a_scan_goes_on_behind_keys_and_values_that_fill_many_pieces() -> None:
    batch = _batch([(b"k" * 1000, b"v" * 3000, [("h", b"x" * 500)], time) for time in (5, 6)])
    pieces = [bytes(batch[at : at + 100]) for at in range(HEADER_SIZE, len(batch), 100)]
    for checks_headers in (False, True):
        found = list(scan_records(pieces, read_header(batch), checks_headers=checks_headers))
        assert found == [(5, 0, True), (6, 1, True)]
