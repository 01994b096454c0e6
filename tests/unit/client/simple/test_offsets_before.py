"""Offsets that divide a log: descending, within the log, at most as many as asked for, at even distances."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.simple.offsets_before import divided_offsets

OFFSETS = st.integers(0, 2**62)


@given(OFFSETS, st.integers(0, 10_000), st.integers(1, 50))
def test_they_descend_from_the_newest_to_the_start_at_even_distances(start: int, records: int, at_most: int) -> None:
    newest = start + records
    offsets = divided_offsets(start, newest, at_most)
    assert offsets[0] == newest
    assert offsets == sorted(set(offsets), reverse=True)
    assert len(offsets) == min(at_most, records + 1)
    if at_most > 1:
        assert offsets[-1] == start
        distances = [above - below for above, below in pairwise(offsets)]
        assert not distances or max(distances) - min(distances) <= 1


def test_a_log_start_that_has_moved_beyond_the_newest_is_the_only_offset() -> None:
    assert divided_offsets(10, 4, 3) == [10]
