"""Standard output for many bytes: written in threads, so that a reader that does not read blocks no task.

Invariant: nothing stays in a buffer of Python, whose flush at the end of the process could block or fail.
"""

import os
import select
import stat
import sys
from contextlib import suppress
from typing import Any

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.interruption import EXIT_READER_GONE


class StandardOutput:
    """Writes bytes to standard output. Used by one task."""

    def __init__(self) -> None:
        sys.stdout.flush()
        buffer = sys.stdout.buffer
        self._raw: Any = getattr(buffer, "raw", buffer)
        self._is_quick = False
        with suppress(AttributeError, OSError):  # a stream of a test
            mode = os.fstat(self._raw.fileno()).st_mode
            self._is_quick = stat.S_ISFIFO(mode) or stat.S_ISREG(mode)

    async def write(self, data: bytes | memoryview) -> None:
        """Write everything. A cancelled write is left to itself. Raises typer.Exit, as `write_now`."""
        if len(data) <= select.PIPE_BUF and self._has_room():
            self.write_now(data)
            await trio.lowlevel.checkpoint()
        else:
            await trio.to_thread.run_sync(self.write_now, data, abandon_on_cancel=True)

    def _has_room(self) -> bool:
        """True if PIPE_BUF bytes can be written at once: then a thread would take longer than the write."""
        return self._is_quick and bool(select.select([], [self._raw], [], 0)[1])

    def write_now(self, data: bytes | memoryview) -> None:
        """Write everything. Raises typer.Exit: quietly, with 141, if the reader has left (as by SIGPIPE)."""
        left = memoryview(data)
        try:
            while left:
                written = self._raw.write(left)
                if written is None:  # a pipe that somebody made non-blocking
                    select.select([], [self._raw], [])
                    continue
                left = left[written:]
        except BrokenPipeError:
            output.discard_stdout()
            raise typer.Exit(EXIT_READER_GONE) from None
        except OSError as error:
            output.discard_stdout()
            output.exit_with(f"cannot write to standard output: {error.strerror}")

    def require_reader(self) -> None:
        """Raise typer.Exit if standard output is a pipe whose reader has left, even if there is nothing to write."""
        try:
            number = self._raw.fileno()
        except (AttributeError, OSError):  # a stream of a test
            return
        poll = select.poll()
        poll.register(number, 0)
        if any(events & select.POLLERR for _, events in poll.poll(0)):
            output.discard_stdout()
            raise typer.Exit(EXIT_READER_GONE)
