"""Ends of commands by SIGINT (Ctrl-C) and SIGTERM: quiet, with 128 plus the signal's number, at any moment."""

import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import trio
import typer

from pipeline.cli.terminal.output import EXIT_FAILED

_Result = TypeVar("_Result")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_OF_SIGNAL = 128
EXIT_READER_GONE = EXIT_OF_SIGNAL + signal.SIGPIPE
_BLOCKS: ContextVar[list[trio.CancelScope]] = ContextVar("blocks")
"""Blocks of the command that runs, the innermost last: a signal cancels that one."""


@contextmanager
def interrupted_first() -> Iterator[None]:
    """Guard a block that a signal cancels alone, so that what was opened around it is closed while all else works.

    Raises typer.Exit then.
    """
    blocks = _BLOCKS.get([])
    with trio.CancelScope() as scope:
        blocks.append(scope)
        try:
            yield
        finally:
            blocks.remove(scope)
    if scope.cancelled_caught:
        raise typer.Exit(EXIT_FAILED)  # the signal's own code takes its place


def run_interruptibly(command: Callable[..., Awaitable[_Result]], *arguments: object) -> _Result:
    """Run a command with trio. A signal cancels the command, so that it closes what it opened; a second one does not
    wait for that. Raises typer.Exit after a signal.
    """
    try:
        return trio.run(_run, command, arguments)
    except BaseExceptionGroup as group:
        from pipeline.net.nurseries import essential_error

        error = essential_error(group)
        raise error from error.__cause__


async def _run(command: Callable[..., Awaitable[_Result]], arguments: tuple[object, ...]) -> _Result:
    if threading.current_thread() is not threading.main_thread():
        return await command(*arguments)  # signals are the main thread's
    caught: list[int] = []
    scope = trio.CancelScope()
    blocks = [scope]
    _BLOCKS.set(blocks)
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch, blocks, caught)
        try:
            with scope:
                return await command(*arguments)
        except Exception:
            if not caught:
                raise
        finally:
            nursery.cancel_scope.cancel()
    raise typer.Exit(EXIT_OF_SIGNAL + caught[0])


async def _watch(
    blocks: list[trio.CancelScope], caught: list[int], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(*SIGNALS) as signals:
        task_status.started()
        async for number in signals:
            if caught:
                os._exit(EXIT_OF_SIGNAL + number)
            caught.append(number)
            blocks[-1].cancel()
