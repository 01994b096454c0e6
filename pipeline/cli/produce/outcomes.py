"""Outcome of a command that failed: how many lines were published, and which. Pure."""

from collections.abc import Iterable, Iterator, Sequence

MAX_SPANS = 5

Span = tuple[int, int]
"""First and last number of lines that follow each other."""


def describe_published(published: int, unpublished: Sequence[int], unsure: Sequence[int]) -> str:
    """Return how many records were published, and which lines if those are not the first ones.

    `published` lines were acknowledged. `unpublished` has the numbers of other lines that were tried, of which `unsure`
    may have been published all the same.
    """
    text = f"{published} record{'' if published == 1 else 's'} published"
    if published and any(number <= published for number in unpublished):
        text += f" ({_lines(_between(unpublished, published + len(unpublished)))})"
    if unsure:
        text += f", {len(unsure)} more may have been published ({_lines(_spans(unsure))})"
    return text


def _between(numbers: Iterable[int], last: int) -> Iterator[Span]:
    """Yield the spans of the numbers from 1 to `last` that are not given."""
    first = 1
    for start, end in (*_spans(numbers), (last + 1, last + 1)):
        if first < start:
            yield first, start - 1
        first = end + 1


def _spans(numbers: Iterable[int]) -> Iterator[Span]:
    first = last = -1
    for number in sorted(numbers):
        if number != last + 1:
            if first >= 0:
                yield first, last
            first = number
        last = number
    if first >= 0:
        yield first, last


def _lines(spans: Iterable[Span]) -> str:
    listed = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    noun = "line" if len(listed) == 1 and listed[0].isdigit() else "lines"
    return f"{noun} {', '.join(listed[:MAX_SPANS])}{' and others' if len(listed) > MAX_SPANS else ''}"
