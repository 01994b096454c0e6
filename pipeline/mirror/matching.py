"""Matches of patterns that users wrote, within a bounded time.

Some patterns, such as `(a+)+$`, take for ever on some names, and the event loop stands still meanwhile. Python looks
for signals as it matches, so a timer of CPU time ends a match. Only the main thread gets signals: in others a match
takes its time.
"""

import re
import signal
import threading
from types import FrameType

from pipeline.mirror.selection import SlowPatternError

MATCH_S = 0.2
"""CPU time for one match. Patterns of names take microseconds."""
_MAY_BE_SLOW = re.compile(r"(?:[*+?}].*){3}|\)[*+{]|\|", re.DOTALL)
"""Patterns that may take long on a topic's or a group's name; all others are matched without a timer."""


class _TimeIsUp(Exception):
    """The timer has ended a match."""


def match_within_bound(pattern: re.Pattern[str], name: str) -> bool:
    """Return True if the pattern matches the whole name. Raises SlowPatternError after `MATCH_S` of CPU time."""
    if not _MAY_BE_SLOW.search(pattern.pattern) or threading.current_thread() is not threading.main_thread():
        return pattern.fullmatch(name) is not None
    before = signal.signal(signal.SIGVTALRM, _end)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, MATCH_S)
        try:
            return pattern.fullmatch(name) is not None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _TimeIsUp:
        raise SlowPatternError(pattern.pattern, name) from None
    finally:
        signal.signal(signal.SIGVTALRM, before)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise _TimeIsUp
