from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records.batch import read_header, validate_for_append
from pipeline.records.builder import BatchBuilder, encode_varint
from pipeline.records.compression import Codec
from pipeline.records.record import iterate_records


@pytest.mark.long
@pytest.mark.parametrize("codec", Codec)
def test_built_records_are_read_back(
    codec: Codec, build_batch: Callable[..., bytearray], records_of: Callable[..., Any], generated_fields: Any
) -> None:
    @given(generated_fields)
    def check(fields: Any) -> None:
        batch = build_batch(fields, codec)
        (header,) = validate_for_append(batch, max_batch_bytes=1 << 20)
        assert header.codec is codec
        assert header.max_timestamp == max(timestamp_ms for *_, timestamp_ms in fields)
        assert list(iterate_records(batch)) == records_of(fields)

    check()


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-64, "7f"),
        (64, "8001"),
        (8191, "fe7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_varints_have_kafkas_encoding(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded


def test_grows_to_its_limit_and_no_further() -> None:
    builder = BatchBuilder(Codec.NONE, 1000)
    while builder.append(b"k", b"v" * 50, (), 5):
        assert builder.size_bytes <= 1000
    count, size = builder.record_count, builder.size_bytes
    assert count == 16
    assert builder.append(None, b"", (), 5), "a smaller one still fits"
    assert builder.size_bytes == size + 7
    batch = builder.build()
    assert read_header(batch).record_count == count + 1
    assert len(batch) == size + 7 <= 1000


def test_the_first_record_always_fits() -> None:
    builder = BatchBuilder(Codec.NONE, 100)
    assert builder.append(None, b"v" * 5000, (), 5)
    assert not builder.append(None, b"", (), 5)
    assert [len(record.value or b"") for record in iterate_records(builder.build())] == [5000]


def test_a_list_of_headers_may_change_between_records() -> None:
    builder = BatchBuilder(Codec.NONE, 10_000)
    headers: list[tuple[str, bytes | None]] = [("a", b"1")]
    builder.append(None, None, headers, 1)
    headers.append(("b", None))
    builder.append(None, None, headers, 1)
    first, second = iterate_records(builder.build())
    assert first.headers == (("a", b"1"),)
    assert second.headers == (("a", b"1"), ("b", None))


def test_a_record_without_headers_behind_one_with_a_list_of_them_has_none() -> None:
    builder = BatchBuilder(Codec.NONE, 10_000)
    builder.append(None, None, [("a", b"1")], 1)
    builder.append(None, None, (), 1)
    assert [record.headers for record in iterate_records(builder.build())] == [(("a", b"1"),), ()]


@pytest.mark.parametrize("count_before", [0, 2])
@pytest.mark.parametrize(
    "bad",
    [
        {"value": "text"},
        {"value": 5},
        {"value": memoryview(b"abcdef")[::2]},
        {"value": memoryview(b"abcdefgh").cast("i")},
        {"key": "text"},
        {"key": memoryview(b"abcdefgh").cast("i")},
        {"headers": [("a", "text")]},
        {"headers": [("a", b"1"), (5, b"2")]},
        {"headers": [("a", b"1"), ("b", memoryview(b"abcdefgh").cast("i"))]},
        {"headers": (("a", array("i", [1, 2])),)},
        {"timestamp_ms": 1.5},
        {"timestamp_ms": "1"},
        {"timestamp_ms": 2**62},
        {"timestamp_ms": -(2**63)},
    ],
)
def test_a_record_that_is_refused_leaves_nothing_in_the_batch(count_before: int, bad: dict[str, Any]) -> None:
    builder = BatchBuilder(Codec.NONE, 10_000)
    for _ in range(count_before):
        builder.append(b"k", b"before", (), 1)
    record: dict[str, Any] = {"key": b"k", "value": b"v", "headers": (), "timestamp_ms": 1}
    with pytest.raises((TypeError, ValueError, AttributeError)):
        builder.append(**record | bad)
    builder.append(b"k", b"after", (), 1)
    batch = builder.build()
    values = [record.value for record in iterate_records(batch)]
    assert values == [*([b"before"] * count_before), b"after"]
    assert read_header(batch).max_timestamp == 1


@pytest.mark.parametrize("first", [2**62 - 1, 1 - 2**62])
def test_times_as_far_apart_as_may_be_are_kept(first: int) -> None:
    builder = BatchBuilder(Codec.NONE, 10_000)
    for timestamp_ms in (first, -first):
        builder.append(None, None, (), timestamp_ms)
    assert [record.timestamp_ms for record in iterate_records(builder.build())] == [first, -first]


def test_an_empty_batch_cannot_be_built() -> None:
    builder = BatchBuilder(Codec.NONE, 1000)
    with pytest.raises(ValueError, match="at least one"):
        builder.build()
    builder.append(None, None, (), 1)
    builder.build()
    with pytest.raises(ValueError, match="at least one"):
        builder.build()


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=10))
def test_timestamps_may_go_back(timestamps_ms: list[int]) -> None:
    builder = BatchBuilder(Codec.NONE, 10_000)
    for timestamp_ms in timestamps_ms:
        builder.append(None, None, (), timestamp_ms)
    assert [record.timestamp_ms for record in iterate_records(builder.build())] == timestamps_ms


@pytest.mark.parametrize(("codec", "fast", "small"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 17), (Codec.ZSTD, -50, 19)])
def test_a_level_of_compression_trades_time_for_size(codec: Codec, fast: int, small: int) -> None:
    sizes = []
    for level in (fast, small):
        builder = BatchBuilder(codec, 1 << 20, level)
        for number in range(2000):
            builder.append(None, b"record %d of many, %d" % (number, number * number), (), 5)
        batch = builder.build()
        assert len(list(iterate_records(batch))) == 2000
        sizes.append(len(batch))
    assert sizes[1] < sizes[0]
