"""What happens at simulated times, and messages that take time to arrive.

Invariant: messages of a `Channel` arrive in the order in which they were sent, each at most once.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable

import trio

Action = Callable[[], None]


class Schedule:
    """Actions by the time at which they are due. `run` is the task that performs them."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()
        self._changed = trio.Event()

    def at(self, time_s: float, action: Action) -> None:
        """Perform at this time of trio's clock; those of one time in the order of these calls."""
        if not self._due or time_s < self._due[0][0]:
            self._changed.set()
        heapq.heappush(self._due, (time_s, next(self._numbers), action))

    def after(self, delay_s: float, action: Action) -> None:
        """Perform so much later."""
        self.at(trio.current_time() + delay_s, action)

    async def run(self) -> None:
        """Perform what is due, until cancelled."""
        while True:
            now = trio.current_time()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            self._changed = trio.Event()
            with trio.move_on_at(self._due[0][0] if self._due else math.inf):
                await self._changed.wait()


class Channel:
    """Messages in one direction. While it is cut they wait, as they would for TCP to send them again."""

    def __init__(self, schedule: Schedule, delay_s: Callable[[], float]) -> None:
        self._schedule = schedule
        self._delay_s = delay_s
        self._queue: deque[Action] = deque()
        self._owed = 0
        self._last_at = 0.0
        self._is_cut = False

    def send(self, deliver: Action) -> None:
        """Call after a while."""
        self._queue.append(deliver)
        if self._is_cut:
            self._owed += 1
        else:
            self._deliver_later()

    def cut(self) -> None:
        """Deliver nothing."""
        self._is_cut = True

    def heal(self) -> None:
        """Deliver again, what waited first."""
        self._is_cut = False
        owed, self._owed = self._owed, 0
        for _ in range(owed):
            self._deliver_later()

    def drop(self, keep: int = 0) -> None:
        """Lose what is on its way, all but so much of its beginning."""
        while len(self._queue) > keep:
            self._queue.pop()

    def __len__(self) -> int:
        """Messages on their way."""
        return len(self._queue)

    def _deliver_later(self) -> None:
        self._last_at = max(trio.current_time() + self._delay_s(), self._last_at)
        self._schedule.at(self._last_at, self._arrive)

    def _arrive(self) -> None:
        if self._is_cut:
            self._owed += 1
        elif self._queue:
            self._queue.popleft()()
