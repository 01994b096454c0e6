"""Threads for calls that wait for a disk: each log dir has its own few.

Invariants:

- At most THREADS_PER_LOG_DIR calls are under way in one log dir. A hung disk never takes the threads of other log dirs
  or of the rest of the broker.
- The oldest call under way shows for how long the disk has not answered. A call that waits for a thread does not count,
  since many calls of a healthy disk take long together. A call whose caller has gone counts until its thread ends.
- A cancelled caller waits for its call, but at a stop no longer than HUNG_S. `abandoned` then has the log dir: the call
  may still change it at any time, so it is not closed.
"""

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import trio

THREADS_PER_LOG_DIR = 8
STALLED_S = 1.0
"""A log dir whose oldest call takes longer gets no new logs and no retention until its disk answers."""
HUNG_S = 30.0
"""A log dir whose oldest call takes longer is reported, and a stop no longer waits for it."""
LOOK_AGAIN_S = 0.5

_Result = TypeVar("_Result")


class DiskThreads:
    """The threads of all log dirs of one broker."""

    def __init__(self) -> None:
        self._limiters: dict[Path, trio.CapacityLimiter] = {}
        self._unlimited = trio.CapacityLimiter(math.inf)
        """Limiter of trio for calls that hold a token of their log dir: only the thread's end returns that token."""
        self._begun_s: dict[Path, dict[object, float]] = {}
        self._awaited: dict[trio.CancelScope, Path] = {}
        self.abandoned: set[Path] = set()
        """Log dirs with a hung call that a stop did not wait for."""

    async def run(self, log_dir: Path, call: Callable[[], _Result], *, abandon_on_cancel: bool = False) -> _Result:
        """Call in a thread of this log dir and return the result. Raises what the call raises.

        A cancelled caller waits for the call, unless `abandon_on_cancel` or `ending_in_time` abandons it; the call goes
        on in any case.
        """
        limiter = self._limiters.setdefault(log_dir, trio.CapacityLimiter(THREADS_PER_LOG_DIR))
        begun_s, clock = self._begun_s.setdefault(log_dir, {}), trio.lowlevel.current_clock()
        token, loop = object(), trio.lowlevel.current_trio_token()

        def carry_out() -> _Result:
            try:
                return call()
            finally:
                del begun_s[token]
                with suppress(trio.RunFinishedError):
                    loop.run_sync_soon(limiter.release_on_behalf_of, token)  # also if the caller has gone

        await limiter.acquire_on_behalf_of(token)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()  # from here on the thread starts, and returns the token
        except BaseException:
            limiter.release_on_behalf_of(token)
            raise
        begun_s[token] = clock.current_time()
        with trio.CancelScope(shield=not abandon_on_cancel) as awaited:
            self._awaited[awaited] = log_dir
            try:
                result = await trio.to_thread.run_sync(carry_out, limiter=self._unlimited, abandon_on_cancel=True)
            finally:
                del self._awaited[awaited]
        return result

    @asynccontextmanager
    async def ending_in_time(self) -> AsyncGenerator[None]:
        """Release callers in a cancelled block that wait for a disk which has hung for HUNG_S."""
        has_ended = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._let_go, has_ended)
            try:
                yield
            finally:
                has_ended.set()

    async def _let_go(self, has_ended: trio.Event) -> None:
        try:
            await has_ended.wait()
        finally:
            with trio.CancelScope(shield=True):
                while not has_ended.is_set():
                    for awaited, log_dir in self._awaited.items():
                        if self.waiting_s(log_dir) >= HUNG_S:
                            self.abandoned.add(log_dir)
                            awaited.shield = False
                    with trio.move_on_after(LOOK_AGAIN_S):
                        await has_ended.wait()

    def waiting_s(self, log_dir: Path) -> float:
        """Return for how long the oldest call of this log dir has been under way; 0 if there is none."""
        begun_s = list(self._begun_s.get(log_dir, {}).values())  # a copy in one step: threads change it
        return trio.current_time() - min(begun_s) if begun_s else 0.0

    def is_stalled(self, log_dir: Path) -> bool:
        """True if the disk seems not to answer now."""
        return self.waiting_s(log_dir) > STALLED_S
