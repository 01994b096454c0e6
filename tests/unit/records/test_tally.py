"""Windows and sums of counts."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.records.tally import CRC_SUM_MODULUS, HOUR_MS, NOTHING, Counts, window_start


@given(st.integers(0, 2**45), st.sampled_from([60_000, 600_000, HOUR_MS]))
def test_windows_start_at_multiples(timestamp_ms: int, window_ms: int) -> None:
    start = window_start(timestamp_ms, window_ms)
    assert start % window_ms == 0
    assert start <= timestamp_ms < start + window_ms


def test_sums_of_crcs_wrap() -> None:
    counts = Counts(1, 2, 3, CRC_SUM_MODULUS - 1)
    assert counts + NOTHING == counts
    assert counts + Counts(1, 2, 3, 5) == Counts(2, 4, 6, 4)
