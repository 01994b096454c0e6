"""Machines that sleep together: when all wall clocks are set forward, the steady clocks of producers go forward, too.

Otherwise a producer rightly distrusts a wall clock that is suddenly hours ahead, and closes no hour until its steady
clock has shown that much.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import trio

from pipeline.audit.counting import lives
from pipeline.testing.simulation.broken_variant import replacing
from pipeline.testing.simulation.schedule import current_schedule


def _slept_s() -> float:
    return trio.current_time() + current_schedule().jumped_ms / 1000


def _with_sleep(life_clock: Any) -> Any:
    def made(clock: Callable[[], int], _steady_s: Callable[[], float]) -> Any:
        return life_clock(clock, _slept_s)

    return made


def sleeping_machines() -> AbstractContextManager[None]:
    """Have steady clocks of producers count the jumps of the wall clocks for the length of a block."""
    return replacing(lives, "LifeClock", _with_sleep)()
