"""Lines of a stream: equal to a plain split, however the bytes arrive, in linear time."""

import time
from collections.abc import Iterator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.produce.lines import LineError, blocks_of_lines

SOME = st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"bb", b"::", b":", b"\0", b""]), max_size=40).map(b"".join)
SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=10)


def pieces(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    start = turn = 0
    while start < len(data):
        size = sizes[turn % len(sizes)]
        yield data[start : start + size]
        start, turn = start + size, turn + 1


def lines_of(data: bytes, sizes: list[int], delimiter: bytes = b"\n", max_bytes: int = 1000) -> list[bytes]:
    left = pieces(data, sizes)
    found: list[bytes] = []

    async def read(_: int) -> bytes:
        return next(left, b"")

    async def collect() -> None:
        async for block in blocks_of_lines(read, delimiter, max_bytes=max_bytes):
            assert block
            found.extend(block)

    try:
        trio.run(collect)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    except LineError as error:
        assert error.number == len(found) + 1
        raise
    return found


@given(SOME, SIZES, st.sampled_from([b"\n", b":", b"::", b"\0", b"\n:"]))
def test_lines_are_those_of_a_plain_split(data: bytes, sizes: list[int], delimiter: bytes) -> None:
    expected = data.split(delimiter)
    if not expected[-1]:
        expected.pop()
    if delimiter == b"\n":
        expected = [line.removesuffix(b"\r") for line in expected]
    assert lines_of(data, sizes, delimiter) == expected


@given(SIZES, st.sampled_from([b"\n", b"::"]))
def test_a_line_that_is_too_long_is_refused_after_the_lines_before_it(sizes: list[int], delimiter: bytes) -> None:
    good = delimiter.join([b"a", b"b" * 10])
    with pytest.raises(LineError, match="line 3 is longer than 10 bytes"):
        lines_of(good + delimiter + b"c" * 11 + delimiter + b"d", sizes, delimiter, max_bytes=10)
    with pytest.raises(LineError, match="line 3 is longer"):
        lines_of(good + delimiter + b"c" * 100, sizes, delimiter, max_bytes=10)


def test_a_long_line_takes_linear_time() -> None:
    def seconds(size: int) -> float:
        started = time.process_time()
        assert lines_of(b"x" * size, [1 << 16], max_bytes=size) == [b"x" * size]
        return time.process_time() - started

    seconds(1 << 20)
    assert seconds(64 << 20) < 100 * max(seconds(4 << 20), 0.01)  # as squares: 256 times and more
