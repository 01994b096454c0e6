"""Garbage collections that look at all objects: rare while large requests are under way, and while a broker starts; and
short, however much a broker comes to hold.

Such a collection holds the event loop for as long as it takes to look at each object, and a request of 100,000 elements
and its answer are several 100,000 of them. Python begins one whenever so many young ones were made and outlived that,
which is several times within such a request, though it leaves no garbage that only a collection finds.

Invariant: however many large requests there are, a full collection comes after `RARE_THRESHOLD` of its younger kind, so
that garbage does not pile up. What a slow one left is looked at by none again: what lives so long is no garbage, as a
rule, and is freed without collections when it goes, unless it is part of a cycle.
"""

import gc
import time
from collections.abc import Mapping
from types import TracebackType

RARE_THRESHOLD = 300
"""Younger collections before a full one, of some 7,000 new objects each; a request of 100,000 elements makes 60."""


FULL_GENERATION = 2
SLOW_S = 0.1
"""Processor time of a full collection that is slow: the committed offsets of 100,000 groups make it 0.3 s."""


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
"""The one of this process, whose collector it sets."""


class SlowCollections:
    """Measures full collections, and has those that come look at nothing that a slow one has left."""

    def __init__(self, slow_s: float = SLOW_S) -> None:
        self._slow_s = slow_s
        self._began_s = 0.0

    def watch(self) -> None:
        """Begin, for as long as the process lives."""
        gc.callbacks.append(self.note)

    def note(self, phase: str, info: Mapping[str, int]) -> None:
        """Take note that a collection begins or has ended, as the collector says."""
        if info["generation"] != FULL_GENERATION:
            return
        if phase == "start":
            self._began_s = time.thread_time()
        elif time.thread_time() - self._began_s > self._slow_s:
            gc.freeze()
