import struct
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from pipeline.errors import BatchTooLargeError, CorruptBatchError, InvalidRecordError
from pipeline.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAX_PRODUCED_RECORDS,
    BatchHeader,
    TimestampType,
    iterate_headers,
    place_batch,
    read_header,
    set_log_append_time,
    take_batches,
    validate_for_append,
    verify_crc,
    whole_batches,
    write_crc,
    write_header,
)
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.record import iterate_records

Build = Callable[..., bytearray]
LIMIT = 1 << 20


@pytest.fixture
def batch(build_batch: Build, some_fields: Any) -> bytearray:
    return build_batch(some_fields)


def _altered(batch: bytearray, **fields: int) -> bytearray:
    changed = bytearray(batch)
    write_header(changed, read_header(changed)._replace(**fields))
    return changed


def test_header_tells_what_was_built(batch: bytearray) -> None:
    header = read_header(batch)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset, header.record_count) == (0, 2, 3, 3)
    assert header.base_timestamp == 1_700_000_000_000
    assert header.max_timestamp == 1_700_000_100_000
    assert header.codec is Codec.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (-1, -1, -1, -1)
    assert not header.is_control
    assert not header.is_transactional


def test_header_layout_is_the_specified_one() -> None:
    header = BatchHeader(
        base_offset=0x0102030405060708,
        batch_length=49,
        partition_leader_epoch=0x11121314,
        magic=2,
        crc=0,
        attributes=0x34,
        last_offset_delta=0x21222324,
        base_timestamp=0x3132333435363738,
        max_timestamp=0x4142434445464748,
        producer_id=0x5152535455565758,
        producer_epoch=0x6162,
        base_sequence=0x71727374,
        record_count=1,
    )
    buffer = bytearray(HEADER_SIZE)
    write_header(buffer, header)
    body = bytes.fromhex("00342122232431323334353637384142434445464748515253545556575861627172737400000001")
    assert buffer == (bytes.fromhex("0102030405060708000000311112131402") + struct.pack(">I", crc32c(body)) + body)
    assert read_header(buffer) == header._replace(crc=crc32c(body))
    assert header.codec is Codec.ZSTD
    assert header.is_transactional
    assert header.is_control


@pytest.mark.parametrize(
    ("base_sequence", "last_offset_delta", "last"),
    [(0, 0, 0), (5, 4, 9), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 2, 5, 3)],
)
def test_sequence_numbers_wrap_to_zero(batch: bytearray, base_sequence: int, last_offset_delta: int, last: int) -> None:
    header = read_header(batch)._replace(base_sequence=base_sequence, last_offset_delta=last_offset_delta)
    assert header.last_sequence == last


def test_offset_and_epoch_are_patched_under_the_same_checksum(batch: bytearray) -> None:
    two = batch + batch
    header = place_batch(memoryview(two), len(batch), 2**40, 7)
    assert header == read_header(two, len(batch))
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 7)
    assert header._replace(base_offset=0, partition_leader_epoch=-1) == read_header(two)
    verify_crc(two, len(batch), header)


def test_log_append_time_becomes_the_timestamp_of_all_records(batch: bytearray) -> None:
    two = batch + batch
    header = set_log_append_time(memoryview(two), len(batch), 1234)
    verify_crc(two, len(batch), header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == 1234
    assert two[: len(batch)] == batch
    assert [record.timestamp_ms for record in iterate_records(two)][3:] == [1234] * 3


def test_the_checksum_covers_every_bit_behind_it(batch: bytearray) -> None:
    header = read_header(batch)
    for position in range(17, len(batch)):
        for bit in range(8):
            batch[position] ^= 1 << bit
            with pytest.raises(CorruptBatchError):
                verify_crc(batch, 0, read_header(batch))
            batch[position] ^= 1 << bit
    verify_crc(batch, 0, header)


def test_any_bit_flip_anywhere_raises_nothing_else(batch: bytearray) -> None:
    for position in range(len(batch)):
        for bit in range(8):
            batch[position] ^= 1 << bit
            try:
                validate_for_append(batch, max_batch_bytes=LIMIT)
            except CorruptBatchError:
                assert position not in range(12, 16)
            else:
                assert position in range(12, 16)
            batch[position] ^= 1 << bit


def test_truncation_is_a_corrupt_batch_or_none(batch: bytearray) -> None:
    two = bytes(batch + batch)
    for size in range(len(two)):
        assert whole_batches(two[:size]) == (len(batch) if size >= len(batch) else 0)
        assert len(list(iterate_headers(two[:size]))) == (size >= len(batch))
        if size != len(batch):
            with pytest.raises(CorruptBatchError):
                validate_for_append(two[:size], max_batch_bytes=LIMIT)


def test_headers_of_many_batches(batch: bytearray) -> None:
    three = batch * 3
    assert [position for position, _ in iterate_headers(three)] == [0, len(batch), 2 * len(batch)]
    assert whole_batches(three) == len(three)
    assert len(validate_for_append(memoryview(three), max_batch_bytes=LIMIT)) == 3


def test_requested_batches_are_taken_whole(batch: bytearray) -> None:
    three, size = batch * 3, len(batch)
    for at_most, taken in ((0, 0), (2, 2), (3, 3), (4, 3)):
        assert take_batches(three, 0, at_most) == (taken * size, taken)
    assert take_batches(three[:-1], size, 9) == (2 * size, 1)
    for length in (-(2**31), -12, 48):
        struct.pack_into(">i", three, size + 8, length)
        assert take_batches(three, 0, 9) == (size, 1)


def test_lengths_that_go_nowhere_are_refused(batch: bytearray) -> None:
    for length in (0, -12, -(2**31), 48):
        struct.pack_into(">i", batch, 8, length)
        with pytest.raises(CorruptBatchError):
            whole_batches(batch)
        with pytest.raises(CorruptBatchError):
            read_header(batch)


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_other_formats_are_refused(batch: bytearray, magic: int) -> None:
    struct.pack_into(">b", batch, 16, magic)
    with pytest.raises(CorruptBatchError, match="format"):
        read_header(batch)


@pytest.mark.parametrize(
    ("fields", "copied"),
    [
        ({"base_offset": 5}, True),
        ({"record_count": 2}, True),
        ({"record_count": 0}, True),
        ({"attributes": 0x30}, True),
        ({"producer_id": 5}, True),
        ({"producer_id": 5, "producer_epoch": 0}, True),
        ({"record_count": 4}, False),
        ({"last_offset_delta": 1}, False),
        ({"last_offset_delta": -1}, False),
        ({"record_count": -1}, False),
        ({"base_offset": -1}, False),
        ({"base_offset": 2**63 - 1}, False),
        ({"attributes": 5}, False),
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 1}, False),
    ],
)
def test_batches_that_a_producer_must_not_send_are_refused(
    batch: bytearray, fields: dict[str, int], copied: bool
) -> None:
    bad = _altered(batch, **fields)
    with pytest.raises(CorruptBatchError):
        validate_for_append(bad, max_batch_bytes=LIMIT)
    if copied:
        assert len(validate_for_append(bad, max_batch_bytes=LIMIT, keep_offsets=True)) == 1
    else:
        with pytest.raises(CorruptBatchError):
            validate_for_append(bad, max_batch_bytes=LIMIT, keep_offsets=True)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_no_producer_sends_records_without_a_payload(batch: bytearray, codec: Codec) -> None:
    empty = bytearray(HEADER_SIZE)
    header = read_header(batch)._replace(batch_length=HEADER_SIZE - LOG_OVERHEAD, attributes=codec)
    write_header(empty, header._replace(last_offset_delta=0, record_count=1))
    with pytest.raises(CorruptBatchError, match="1 records in 0 bytes"):
        validate_for_append(empty, max_batch_bytes=LIMIT)
    assert len(validate_for_append(empty, max_batch_bytes=LIMIT, keep_offsets=True)) == 1


def test_a_request_that_claims_more_records_than_a_segment_takes_is_refused() -> None:
    def empty(count: int) -> bytearray:
        builder = BatchBuilder(Codec.GZIP, LIMIT)
        builder.append(b"k", b"v", (), 1)
        return _altered(builder.build(), record_count=count, last_offset_delta=count - 1)

    half = MAX_PRODUCED_RECORDS // 2
    assert len(validate_for_append(empty(half) + empty(half), max_batch_bytes=LIMIT)) == 2
    for lying in (empty(half) * 3, empty(MAX_PRODUCED_RECORDS + 1), empty(2**31 - 1) * 2):
        with pytest.raises(InvalidRecordError, match="at most"):
            validate_for_append(lying, max_batch_bytes=LIMIT)
    batch = empty(2**31 - 1)
    assert len(validate_for_append(batch, max_batch_bytes=LIMIT, keep_offsets=True)) == 1


def test_a_producer_with_epoch_and_sequence_is_let_through(some_fields: Any) -> None:
    builder = BatchBuilder(Codec.NONE, LIMIT)
    for fields in some_fields:
        builder.append(*fields)
    (header,) = validate_for_append(builder.build(7, 1, 40), max_batch_bytes=LIMIT)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 1, 40, 42)


def test_kept_offsets_must_rise(batch: bytearray) -> None:
    first, second = _altered(batch, base_offset=10), _altered(batch, base_offset=20)
    assert len(validate_for_append(first + second, max_batch_bytes=LIMIT, keep_offsets=True)) == 2
    with pytest.raises(CorruptBatchError):
        validate_for_append(second + first, max_batch_bytes=LIMIT, keep_offsets=True)
    with pytest.raises(CorruptBatchError):
        validate_for_append(first + _altered(batch, base_offset=12), max_batch_bytes=LIMIT, keep_offsets=True)


def test_size_limit_is_an_error_of_its_own(batch: bytearray) -> None:
    validate_for_append(batch, max_batch_bytes=len(batch))
    with pytest.raises(BatchTooLargeError) as caught:
        validate_for_append(batch, max_batch_bytes=len(batch) - 1)
    assert caught.value.size_bytes == len(batch)


def test_empty_bytes_are_refused_as_a_batch() -> None:
    with pytest.raises(CorruptBatchError):
        validate_for_append(b"", max_batch_bytes=LIMIT)


def test_renewed_checksum_is_true(batch: bytearray) -> None:
    batch[-1] ^= 1
    write_crc(batch, 0, len(batch))
    verify_crc(batch, 0, read_header(batch))
