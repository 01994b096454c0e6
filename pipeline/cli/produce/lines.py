"""Reads the records of a stream of bytes: pieces between delimiters, block by block.

Invariants:
- Time is linear in the bytes, and memory bounded: a piece longer than the bound raises as soon as that is known.
- A block is returned as soon as it was read, so records of a pipe or a terminal are published while more are awaited.
- Bytes after the last delimiter are a record of their own; nothing after it is none.
"""

import fcntl
import io
import os
import select
import stat
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from pipeline.errors import ConfigurationError, PipelineError

READ_BYTES = 1 << 20
LINE_END = b"\n"

Read = Callable[[int], Awaitable[bytes]]


class LineError(Exception):
    """A fault of a line. `number` counts from 1, lines before it are sound."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}{reason}")
        self.number = number


class InputError(PipelineError):
    """The input cannot be read on."""


async def blocks_of_lines(
    read: Read, delimiter: bytes = LINE_END, *, max_bytes: int, read_bytes: int = READ_BYTES
) -> AsyncGenerator[list[bytes]]:
    r"""Yield the lines, some at a time, without their delimiters. Before `\n` a `\r` belongs to the delimiter.

    Raises LineError for a line of more than `max_bytes`, after the lines before it.
    """
    number = 0  # of lines that were yielded
    begun: list[bytes] = []  # parts of an unfinished line
    begun_bytes = 0
    edge = b""  # where a delimiter may have begun
    while True:
        chunk = await read(read_bytes)
        begun.append(chunk)
        begun_bytes += len(chunk)
        if not chunk or delimiter in edge + chunk:
            data = b"".join(begun)
            *lines, rest = data.split(delimiter)
            if not chunk and rest:
                lines.append(rest)
            begun, begun_bytes = [rest], len(rest)
            if delimiter == LINE_END and b"\r" in data:
                lines = [line.removesuffix(b"\r") for line in lines]
            sound = len(lines)
            if max(map(len, lines), default=0) > max_bytes:
                sound = next(i for i, line in enumerate(lines) if len(line) > max_bytes)
            if sound:
                yield lines[:sound]
            number += sound
            if sound < len(lines):
                raise _too_long(number, max_bytes)
        if begun_bytes > max_bytes + len(delimiter):
            raise _too_long(number, max_bytes)
        if not chunk:
            return
        edge = (edge + chunk)[1 - len(delimiter) :] if len(delimiter) > 1 else b""


def _too_long(number: int, max_bytes: int) -> LineError:
    return LineError(
        number + 1,
        f" is longer than {max_bytes} bytes; -X max.request.size=BYTES raises the bound, "
        "and the topic's setting max.message.bytes the broker's",
    )


@asynccontextmanager
async def opened_input(file: Path | None) -> AsyncIterator[tuple[Read, int]]:
    """Open a file, or standard input: yields `read`, and the size of a file (0: not known).

    Reads are done in a thread; a cancelled read is left to itself. Raises ConfigurationError if the file cannot be
    opened.
    """
    name = str(file or "standard input")
    try:
        stream = io.FileIO(sys.stdin.fileno(), closefd=False) if file is None else io.FileIO(file)
    except OSError as error:
        raise ConfigurationError(name, f"cannot be read: {error.strerror}") from error
    status = os.fstat(stream.fileno())
    is_pipe = stat.S_ISFIFO(status.st_mode)
    if is_pipe:
        with suppress(OSError):  # not allowed to everybody
            fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, READ_BYTES)

    async def read(count: int) -> bytes:
        try:
            return await trio.to_thread.run_sync(_read_waiting, stream, count, is_pipe, abandon_on_cancel=True)
        except OSError as error:
            raise InputError(f"{name}: {error.strerror}") from error

    with stream:
        yield read, status.st_size if stat.S_ISREG(status.st_mode) else 0


def _read_waiting(stream: io.FileIO, count: int, is_pipe: bool) -> bytes:
    """Wait for bytes, and return those that are there. A pipe gives its bytes in small pieces."""
    while (data := stream.read(count)) is None:  # a pipe that somebody made non-blocking
        select.select([stream], [], [])
    pieces = [data]
    left = count - len(data)
    while is_pipe and data and left and select.select([stream], [], [], 0)[0]:
        data = stream.read(left) or b""
        pieces.append(data)
        left -= len(data)
    return b"".join(pieces)
