"""Simulated time, what happens at which time, and messages that take time to arrive.

Invariant: messages of a `Channel` arrive in the order in which they were sent, each at most once.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable

import trio

EPOCH_MS = 1_700_000_000_000
"""Wall time at which a run begins."""

Action = Callable[[], None]


class Schedule(trio.abc.Clock):
    """Clock of a simulated run, and actions by the time at which they are due.

    trio asks its clock how long to sleep when no task can run. The clock goes on at that moment to whatever is due
    next, performs the actions, and lets nobody sleep. Actions are no task: they must not await.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._due: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()
        self.jumped_ms = 0
        """Time by which all wall clocks together were set forward."""

    def at(self, time_s: float, action: Action) -> None:
        """Perform at this time; those of one time in the order of these calls."""
        heapq.heappush(self._due, (time_s, next(self._numbers), action))

    def after(self, delay_s: float, action: Action) -> None:
        """Perform so much later."""
        self.at(self._now_s + delay_s, action)

    def start_clock(self) -> None:
        """Nothing: the clock begins at 0."""

    def current_time(self) -> float:
        """The simulated time in seconds."""
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Go on to this deadline, or to the first action if that comes before; return the time to sleep."""
        due = self._due
        if due and due[0][0] <= deadline:
            self._now_s = max(self._now_s, due[0][0])
            while due and due[0][0] <= self._now_s:
                heapq.heappop(due)[2]()
        elif deadline == math.inf:
            return deadline
        else:
            self._now_s = max(self._now_s, deadline)
        return 0


def current_schedule() -> Schedule:
    """Return the schedule of the run that this is called in."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, Schedule)
    return clock


def true_time_ms() -> int:
    """Return the wall time, in ms since 1970."""
    return EPOCH_MS + current_schedule().jumped_ms + int(trio.current_time() * 1000)


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
