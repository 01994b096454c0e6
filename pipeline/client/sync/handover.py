"""Records on their way from the program's threads to the core thread, in lists: one wake-up for many records.

Invariants:
A. Records are taken in the order in which they were put, so those of one thread keep their order.
B. After a `put` the core is awake: its flag is cleared before the records are taken (`take`), and the wake-up comes
   first, then the flag, then the record (`put`; the core takes once the lock is free). An interrupt in between costs a
   wake-up too many, never a record.
C. The bytes of records that the core has not accepted stay below `max_bytes`, unless one `put` alone is larger.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pipeline.errors import DeadlineExceededError, PipelineError

Item = TypeVar("Item")


class Handover(Generic[Item]):
    """The queue between the threads. `wake` is called by a thread that puts."""

    def __init__(self, max_bytes: int, wake: Callable[[], None]) -> None:
        self._max_bytes = max_bytes
        self._taker: int | None = None
        self._wake = wake
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._items: list[Item] = []
        self._unaccepted_bytes = 0
        self._is_awake = False
        self._refusal: PipelineError | None = None
        self._process = os.getpid()

    def put(self, item: Item, size_bytes: int, timeout_s: float) -> None:
        """Hand an item over. Waits for room for at most `timeout_s`.

        Raises DeadlineExceededError without room, the error of `refuse`, and PipelineError in a process that was forked
        after the queue was made. A call that is interrupted may have handed the item over.
        """
        if os.getpid() != self._process:  # before the lock, which a thread of the parent may have held
            self.require_same_process()
        with self._lock:
            if self._refusal is not None:
                raise self._refusal_again()
            if self._unaccepted_bytes and self._unaccepted_bytes + size_bytes > self._max_bytes:
                self._wait_for_room(size_bytes, timeout_s)
            if not self._is_awake:  # invariant B
                self._wake()
                self._is_awake = True
            self._items.append(item)
            self._unaccepted_bytes += size_bytes

    def take(self) -> list[Item]:
        """Return what was put since, for the core thread; nothing if the next `put` wakes it."""
        with self._lock:
            self._taker = threading.get_ident()
            self._is_awake = bool(self._items)
            taken, self._items = self._items, []
            return taken

    def done(self, size_bytes: int) -> None:
        """Give the room of taken items back."""
        with self._lock:
            self._unaccepted_bytes -= size_bytes
            self._room.notify_all()

    def waiting(self) -> list[Item]:
        """Return the items that were put and not taken."""
        with self._lock:
            return list(self._items)

    def refuse(self, reason: PipelineError) -> None:
        """Raise this error in each further `put`, and in those that wait. The first reason stays."""
        with self._lock:
            self._refusal = self._refusal or reason
            self._room.notify_all()

    def require_same_process(self) -> None:
        """Raise PipelineError in a process that was forked."""
        if os.getpid() != self._process:
            raise PipelineError(
                "this producer belongs to the process that opened it, and this process was forked from it since: "
                "open a producer in each process"
            )

    def _wait_for_room(self, size_bytes: int, timeout_s: float) -> None:
        if threading.get_ident() == self._taker:  # a callback, for which no room can be made meanwhile
            timeout_s = 0.0
        deadline = time.monotonic() + timeout_s
        while self._unaccepted_bytes and self._unaccepted_bytes + size_bytes > self._max_bytes:
            if not self._room.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                raise DeadlineExceededError(
                    f"no room for a record within {timeout_s:g} s: buffer.memory is full of undelivered records"
                )
            if self._refusal is not None:
                raise self._refusal_again()

    def _refusal_again(self) -> PipelineError:
        """Copy the error for each thread: one object raised in several would mix up their tracebacks."""
        assert self._refusal is not None
        fresh = type(self._refusal)(str(self._refusal))
        fresh.__cause__ = self._refusal.__cause__ or self._refusal
        return fresh
