"""Full garbage collections: rare while large requests are under way or a broker starts, and always short.

A full collection holds the event loop while it visits each object, and a request of 100,000 elements and its answer are
several 100,000 objects. Python begins one whenever enough young objects have survived, several times within such a
request, although the request leaves no garbage that only a collection finds.

Invariant: however many large requests there are, a full collection follows `RARE_THRESHOLD` younger ones, so garbage
does not pile up. Objects that survive a slow collection are never visited again: objects that live so long are seldom
garbage, and are freed without a collection unless they are part of a cycle.
"""

import gc
import time
from collections.abc import Mapping
from types import TracebackType

RARE_THRESHOLD = 300
"""Younger collections before a full one, of some 7,000 new objects each; a request of 100,000 elements makes 60."""
YOUNG_OBJECTS = 100_000
"""New objects before a collection in a client of thousands of partitions: an answer about 10,000 makes some 60,000."""
FULL_GENERATION = 2
SLOW_S = 0.1
"""Processor time from which on a full collection is slow: with committed offsets of 100,000 groups it takes 0.3 s."""


def expect_large_answers() -> None:
    """Have collections begin after YOUNG_OBJECTS new objects for as long as the process lives.

    A mirror of 10,000 idle partitions decodes answers about all of them all the time. With Python's thresholds a third
    of its processor time are collections that find nothing, because the answers survive a few of them.
    """
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


class RareCollections:
    """A context in which full collections are rare. Several tasks may be in it at a time."""

    def __init__(self) -> None:
        self._count = 0
        self._usual = gc.get_threshold()

    def __enter__(self) -> None:
        if not self._count:
            self._usual = gc.get_threshold()
            gc.set_threshold(*self._usual[:2], RARE_THRESHOLD)
        self._count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._count -= 1
        if not self._count:
            gc.set_threshold(*self._usual)


RARE_COLLECTIONS = RareCollections()
"""The context of this process, which has one collector."""


class SlowCollections:
    """Measures full collections, and freezes the objects that survive a slow one."""

    def __init__(self, slow_s: float = SLOW_S) -> None:
        self._slow_s = slow_s
        self._began_s = 0.0

    def watch(self) -> None:
        """Watch the collector for as long as the process lives."""
        gc.callbacks.append(self.note)

    def note(self, phase: str, info: Mapping[str, int]) -> None:
        """Note that a collection begins or has ended (a `gc` callback)."""
        if info["generation"] != FULL_GENERATION:
            return
        if phase == "start":
            self._began_s = time.thread_time()
        elif time.thread_time() - self._began_s > self._slow_s:
            gc.freeze()
