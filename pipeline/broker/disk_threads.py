"""Threads for calls that wait for a disk: each log dir has its own few.

Invariants:

- At most THREADS_PER_LOG_DIR calls are under way in one log dir. A log dir whose disk hangs never takes the threads
  that other log dirs, or the rest of the broker, need.
- The oldest call under way tells how long the disk has not answered. A call that still waits for a thread does not
  count: many calls of a disk that answers take long together. One whose caller has gone counts until its thread ends.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

THREADS_PER_LOG_DIR = 8
STALLED_S = 1.0
"""A log dir whose oldest call takes longer is spared until it answers: it gets no new logs, and retention waits."""
HUNG_S = 30.0
"""A log dir whose oldest call takes longer is reported."""

_Result = TypeVar("_Result")


class DiskThreads:
    """The threads of all log dirs of one broker."""

    def __init__(self) -> None:
        self._limiters: dict[Path, trio.CapacityLimiter] = {}
        self._begun_s: dict[Path, dict[object, float]] = {}

    async def run(self, log_dir: Path, call: Callable[[], _Result], *, abandon_on_cancel: bool = False) -> _Result:
        """Call in a thread of this log dir and return what the call returns. Raises what the call raises.

        A caller that is cancelled waits for the call, unless `abandon_on_cancel`; the call goes on in any case.
        """
        limiter = self._limiters.setdefault(log_dir, trio.CapacityLimiter(THREADS_PER_LOG_DIR))
        begun_s, clock = self._begun_s.setdefault(log_dir, {}), trio.lowlevel.current_clock()
        token, has_begun = object(), False
        if limiter.available_tokens:  # else the thread says when it has begun
            begun_s[token] = clock.current_time()

        def carry_out() -> _Result:
            nonlocal has_begun
            has_begun = True
            begun_s.setdefault(token, clock.current_time())
            try:
                return call()
            finally:
                begun_s.pop(token, None)

        try:
            return await trio.to_thread.run_sync(carry_out, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
        finally:
            if not has_begun:  # cancelled before that
                begun_s.pop(token, None)

    def waiting_s(self, log_dir: Path) -> float:
        """Return for how long the oldest call of this log dir has been under way; 0 if there is none."""
        begun_s = list(self._begun_s.get(log_dir, {}).values())  # at once: threads change it
        return trio.current_time() - min(begun_s) if begun_s else 0.0

    def is_stalled(self, log_dir: Path) -> bool:
        """Return True if the disk seems not to answer now."""
        return self.waiting_s(log_dir) > STALLED_S
