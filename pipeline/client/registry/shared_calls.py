"""Calls that several tasks wait for, and that one of them makes."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from pipeline.errors import PipelineError

CallKey = TypeVar("CallKey")
CallResult = TypeVar("CallResult")


class SharedCalls(Generic[CallKey, CallResult]):
    """Calls by key: while one is made, others of its key wait for it and share its result, or its PipelineError.

    If the task that makes it is cancelled, or gets another error, a waiting one makes it anew.
    """

    def __init__(self) -> None:
        self._calls: dict[CallKey, _Call[CallResult]] = {}

    async def once(self, key: CallKey, make: Callable[[], Awaitable[CallResult]]) -> CallResult:
        """Return what `make` returns, in this task or in the one that makes the call already."""
        while (under_way := self._calls.get(key)) is not None:
            await under_way.ended.wait()
            if under_way.error is not None:
                raise under_way.error
            if under_way.results:
                return under_way.results[0]
        own = self._calls[key] = _Call()
        try:
            own.results.append(await make())
        except PipelineError as error:
            own.error = error
            raise
        finally:
            del self._calls[key]
            own.ended.set()
        return own.results[0]

    def __len__(self) -> int:
        """Return the number of calls that are being made."""
        return len(self._calls)


class _Call(Generic[CallResult]):
    """A call; once it has ended, its only result or its error, or neither."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.error: PipelineError | None = None
        self.results: list[CallResult] = []
