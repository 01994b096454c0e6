"""The numbers of the lines that a command published before it failed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.produce.outcomes import MAX_SPANS, describe_published


@pytest.mark.parametrize(
    ("published", "unpublished", "unsure", "text"),
    [
        (0, [], [], "0 records published"),
        (1, [], [], "1 record published"),
        (3, [4, 5], [], "3 records published"),
        (3, [2], [], "3 records published (lines 1, 3 to 4)"),
        (1, [1], [], "1 record published (line 2)"),
        (2, [1, 3], [3], "2 records published (lines 2, 4), 1 more may have been published (line 3)"),
        (0, [2, 1], [1, 2], "0 records published, 2 more may have been published (lines 1 to 2)"),
        (7, [1, 3, 5, 7, 9, 11, 13], [], "7 records published (lines 2, 4, 6, 8, 10 and others)"),
    ],
)
def test_lines_are_told_that_are_not_the_first_ones(
    published: int, unpublished: list[int], unsure: list[int], text: str
) -> None:
    assert describe_published(published, unpublished, unsure) == text


@given(st.integers(1, 20), st.sets(st.integers(1, 20), min_size=1))
def test_the_lines_that_are_told_are_those_that_were_published(count: int, unpublished: set[int]) -> None:
    unpublished = {number for number in unpublished if number <= count} or {1}
    expected = [number for number in range(1, count + 1) if number not in unpublished]
    text = describe_published(len(expected), sorted(unpublished), [])
    if "(" not in text:
        assert expected == list(range(1, len(expected) + 1))
        return
    told = text.partition("(")[2].rstrip(")").split(" ", 1)[1].removesuffix(" and others")
    spans = [[int(number) for number in span.split(" to ")] for span in told.split(", ")]
    numbers = [number for span in spans for number in range(span[0], span[-1] + 1)]
    assert numbers == expected[: len(numbers)]
    assert len(numbers) == len(expected) or len(spans) == MAX_SPANS
