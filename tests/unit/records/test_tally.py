"""Windows and sums of counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records.batch import BatchHeader, read_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.tally import CRC_SUM_MODULUS, HOUR_MS, NOTHING, Counts, window_start

_BUILDER = BatchBuilder(Codec.NONE, 1 << 20)
_BUILDER.append(None, b"x", (), 5)
BATCH = bytes(_BUILDER.build())


@given(st.integers(0, 2**45), st.sampled_from([60_000, 600_000, HOUR_MS]))
def test_windows_start_at_multiples(timestamp_ms: int, window_ms: int) -> None:
    start = window_start(timestamp_ms, window_ms)
    assert start % window_ms == 0
    assert start <= timestamp_ms < start + window_ms


def test_sums_of_crcs_wrap() -> None:
    counts = Counts(1, 2, 3, CRC_SUM_MODULUS - 1)
    assert counts + NOTHING == counts
    assert counts + Counts(1, 2, 3, 5) == Counts(2, 4, 6, 4)


@given(
    st.lists(st.tuples(st.sampled_from(Codec), st.integers(1, 5), st.integers(-1, 9)), max_size=6), st.integers(0, 6)
)
def test_codecs_are_counted_in_any_order_and_in_parts(batches: list[tuple[Codec, int, int]], split: int) -> None:
    headers = []
    for codec, records, producer in batches:
        builder = BatchBuilder(codec, 1 << 20)
        for _ in range(records):
            builder.append(None, b"x", (), 5)
        headers.append(read_header(builder.build(producer, 0, 7)))

    def counted(some: list[BatchHeader]) -> Counts:
        found = NOTHING
        for header in some:
            found = found.with_batch(header)
        return found

    whole, parts = counted(headers), counted(headers[split:]) + counted(headers[:split])
    assert (whole, whole.codecs) == (parts, parts.codecs)
    assert whole.codecs is not None
    assert whole.codecs.batches == tuple(sum(each[0] is codec for each in batches) for codec in Codec)
    recoded = counted([header._replace(attributes=header.attributes & ~7, crc=0) for header in headers])
    assert recoded.codecs is not None
    assert recoded.codecs.header_sum == whole.codecs.header_sum


def test_what_one_part_did_not_count_is_not_known_of_both() -> None:
    one, unknown = NOTHING.with_batch(read_header(BATCH)), Counts(1, 2, 3, 4)
    assert one.codecs is not None
    assert (one + unknown).codecs is (unknown + one).codecs is unknown.with_batch(read_header(BATCH)).codecs is None
    assert NOTHING.with_batch(read_header(BATCH)._replace(attributes=7)).codecs is None


@pytest.mark.parametrize("field", ["base_timestamp", "producer_id", "producer_epoch", "base_sequence", "record_count"])
def test_each_field_that_recompression_keeps_counts(field: str) -> None:
    header = read_header(BATCH)
    one, other = (NOTHING.with_batch(each).codecs for each in (header, header._replace(**{field: 9})))
    assert one is not None
    assert other is not None
    assert one.header_sum != other.header_sum
