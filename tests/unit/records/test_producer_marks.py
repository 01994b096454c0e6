"""Marked producer ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records.producer_marks import is_marked, mark_producer_id


@given(st.integers(0, 2**61 - 1))
def test_a_marked_id_is_known_by_its_mark_and_stays_unique(producer_id: int) -> None:
    marked = mark_producer_id(producer_id)
    assert is_marked(marked)
    assert not is_marked(producer_id)
    assert 0 < marked < 2**63
    assert marked - 2**61 == producer_id


@pytest.mark.parametrize("producer_id", [-1, -(2**63), 0, 5])
def test_other_ids_are_not_marked(producer_id: int) -> None:
    assert not is_marked(producer_id)


@pytest.mark.parametrize("producer_id", [-1, 2**61, 2**62])
def test_ids_out_of_range_are_refused(producer_id: int) -> None:
    with pytest.raises(ValueError, match="cannot be marked"):
        mark_producer_id(producer_id)
