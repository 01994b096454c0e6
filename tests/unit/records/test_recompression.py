"""Recompression of fetched batches: same records, same headers, and nothing lost that cannot be opened."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.records.batch import (
    CONTROL,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    BatchHeader,
    iterate_headers,
    read_header,
    verify_crc,
    write_header,
)
from pipeline.records.batch_sums import frame_of
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.contents import hash_of_contents
from pipeline.records.memory import OPENED_BATCHES
from pipeline.records.recompression import MAX_RECOMPRESSED_BYTES, recompressed
from pipeline.records.record import iterate_records
from tests.support.bombs import batch_of, bomb
from tests.unit.records.conftest import field_lists

LOG_APPEND_TIME = 0x08
COMPACTED = 5
"""Offsets without records at the end of a batch, as compaction leaves them."""


def placed(batch: bytes | bytearray, **fields: int) -> bytes:
    """A batch with other fields in its header."""
    written = bytearray(batch)
    header = read_header(written)
    attributes = fields.pop("attributes", 0) | header.attributes
    write_header(written, header._replace(attributes=attributes, **fields))
    return bytes(written)


def batch(value: bytes, codec: Codec = Codec.NONE, *, count: int = 1) -> bytes:
    builder = BatchBuilder(codec, 1 << 30)
    for number in range(count):
        assert builder.append(b"%d" % number, value, (), 1_700_000_000_000 + number)
    return bytes(builder.build())


def headers_of(data: bytes | memoryview) -> list[BatchHeader]:
    found = [(at, header) for at, header in iterate_headers(data)]
    for at, header in found:
        verify_crc(data, at, header)
    assert sum(header.size_bytes for _, header in found) == len(data)
    return [header for _, header in found]


@pytest.mark.long
@settings(max_examples=60)
@given(
    st.lists(st.tuples(field_lists, st.sampled_from(Codec), st.booleans(), st.booleans()), min_size=1, max_size=5),
    st.integers(0, 2**40),
    st.integers(-1, 2**30),
)
def test_batches_of_any_codec_keep_records_and_headers(
    built: list[tuple[Any, Codec, bool, bool]], base_offset: int, producer_id: int
) -> None:
    data = b""
    for records, codec, is_transactional, is_of_append in built:
        builder = BatchBuilder(codec, 1 << 30)
        for record in records:
            assert builder.append(*record)
        attributes = TRANSACTIONAL * is_transactional | LOG_APPEND_TIME * is_of_append
        delta = len(records) - 1 + COMPACTED
        made = placed(
            builder.build(producer_id, 3, 500),
            base_offset=base_offset,
            attributes=attributes,
            last_offset_delta=delta,
            partition_leader_epoch=9,
        )
        base_offset += delta + 1
        data += made
    found = recompressed(memoryview(data), Codec.ZSTD)
    assert list(iterate_records(found.data)) == list(iterate_records(data))
    before, after = headers_of(data), headers_of(found.data)
    assert [frame_of(header) for header in after] == [frame_of(header) for header in before]
    assert {header.partition_leader_epoch for header in after} == {9}
    for old, new in zip(before, after, strict=True):
        assert new == old or (new.codec is Codec.ZSTD and new.size_bytes < old.size_bytes)
        assert old.codec is not Codec.ZSTD or new == old
    assert (found.refused, found.refusal) == (0, None)
    assert found.before_bytes - found.after_bytes == len(data) - len(found.data)
    assert found.count == sum(new != old for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.ZSTD])
def test_a_batch_of_each_other_codec_becomes_smaller(codec: Codec) -> None:
    words = [os.urandom(3).hex().encode() for _ in range(2000)]  # so that a codec without entropy coding is beaten
    data = batch(b" ".join(words), codec, count=20)
    found = recompressed(memoryview(data), Codec.ZSTD)
    (header,) = headers_of(found.data)
    assert header.codec is Codec.ZSTD
    assert (found.count, found.before_bytes, found.after_bytes) == (1, len(data), len(found.data))
    assert list(iterate_records(found.data)) == list(iterate_records(data))


@pytest.mark.parametrize(
    "untouched",
    [
        pytest.param(batch(b"x" * 1000, Codec.ZSTD), id="zstd"),
        pytest.param(placed(batch(b"x" * 1000), attributes=CONTROL), id="control"),
        pytest.param(batch(os.urandom(1000)), id="would become larger"),
    ],
)
def test_what_gains_nothing_is_passed_on_as_it_is(untouched: bytes) -> None:
    data = memoryview(untouched + batch(b"y" * 1000) + untouched)
    found = recompressed(data, Codec.ZSTD)
    assert found.data[: len(untouched)] == found.data[-len(untouched) :] == untouched
    assert (found.count, found.refused) == (1, 0)
    alone = memoryview(untouched)
    assert recompressed(alone, Codec.ZSTD).data is alone


def test_a_batch_without_records_is_passed_on() -> None:
    header = read_header(batch(b"x"))._replace(batch_length=HEADER_SIZE - LOG_OVERHEAD, record_count=0, attributes=3)
    empty = bytearray(HEADER_SIZE)
    write_header(empty, header)
    found = recompressed(memoryview(empty), Codec.ZSTD)
    assert (found.data, found.count, found.refused) == (empty, 0, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: placed(batch(b"x" * 1000), attributes=Codec.GZIP), "not gzip data"),
        (lambda: placed(batch(b"x" * 1000), attributes=7), "unknown compression codec 7"),
        (lambda: bomb(Codec.GZIP, 2 * MAX_RECOMPRESSED_BYTES, 1_700_000_000_000), "larger than the"),
        (lambda: batch_of(bytes(MAX_RECOMPRESSED_BYTES + 1), read_header(batch(b"x")), Codec.NONE), "larger than the"),
    ],
    ids=["damaged", "unknown codec", "bomb", "large without a codec"],
)
def test_a_batch_that_cannot_be_opened_is_passed_on_and_counted(
    make: Callable[[], bytes | bytearray], reason: str
) -> None:
    refused = bytes(make())
    found = recompressed(memoryview(batch(b"y" * 1000) + refused + refused), Codec.ZSTD)
    assert found.data[-2 * len(refused) :] == 2 * refused
    assert (found.count, found.refused) == (1, 2)
    assert found.refusal is not None
    assert reason in found.refusal
    assert OPENED_BATCHES.held_bytes == 0


def test_contents_are_those_of_header_and_records() -> None:
    plain = batch(b"x" * 1000, count=3)
    packed = bytes(recompressed(memoryview(plain), Codec.ZSTD).data)

    def contents(data: bytes) -> bytes:
        return hash_of_contents(data, read_header(data))

    assert plain != packed
    assert contents(plain) == contents(packed)
    others = [
        placed(packed, base_offset=1),
        placed(packed, max_timestamp=1),
        placed(packed, producer_id=1),
        placed(packed, attributes=TRANSACTIONAL),
        batch(b"x" * 999 + b"y", Codec.ZSTD, count=3),
    ]
    assert len({contents(plain), *map(contents, others)}) == 1 + len(others)
    assert contents(placed(packed, partition_leader_epoch=7)) == contents(plain)
