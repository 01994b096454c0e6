"""Waiters at a partition: Fetches for more records, writes for their commit."""

import math
from collections.abc import Callable
from typing import Protocol

import trio

from pipeline.model import Offset
from pipeline.net.signals import Outcome
from pipeline.protocol.errors import ErrorCode, KafkaError


class Waiter(Protocol):
    """A waiter for more records."""

    def arrived(self, size_bytes: int) -> None:
        """Note that at most so many more bytes can be read; 0: a log start offset or a high watermark has moved."""

    def wake(self) -> None:
        """Note that the partition is closed, led elsewhere, or its disk failed."""


class FetchWaiter:
    """Wait of a Fetch for so many bytes, in all its partitions together."""

    __slots__ = ("_missing_bytes", "is_over", "woken", "woken_s")

    def __init__(self, missing_bytes: int) -> None:
        self._missing_bytes = missing_bytes
        self.woken = trio.Event()
        self.woken_s = math.inf
        """When enough bytes had arrived, in trio's time."""
        self.is_over = False
        """True if the records may not come any more."""

    def arrived(self, size_bytes: int) -> None:
        """Note that at most so many more bytes can be read."""
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0 and not self.woken.is_set():
            self.woken_s = trio.current_time()
            self.woken.set()

    def wake(self) -> None:
        """Note that the records may not come any more."""
        self.is_over = True
        self.woken.set()


class CommitWait(Outcome):
    """Wait of a write until every in-sync replica has it. An error says why its fate is unknown."""

    __slots__ = ("_leave", "end_offset")

    def __init__(self, end_offset: Offset, leave: Callable[["CommitWait"], None]) -> None:
        super().__init__()
        self.end_offset = end_offset
        self._leave = leave

    def leave(self) -> None:
        """Wait no longer."""
        super().leave()
        self._leave(self)

    def finish(self) -> None:
        """Wait no longer. Raises KafkaError (REQUEST_TIMED_OUT if the wait was not over), StorageError."""
        self.leave()
        if not self.is_over:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the replicas in sync did not follow in time")
        if self.error is not None:
            raise self.error

    async def wait(self, deadline: float = math.inf) -> None:
        """Return once the write is committed. Raises as `finish`, which is called at the deadline (trio's time)."""
        try:
            await self.wait_over(deadline)
        finally:
            self.leave()
        self.finish()
