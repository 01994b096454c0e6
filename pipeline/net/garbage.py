"""Garbage collections that look at all objects: rare while large requests are under way, and while a broker starts.

Such a collection holds the event loop for as long as it takes to look at each object, and a request of 100,000 elements
and its answer are several 100,000 of them. Python begins one whenever so many young ones were made and outlived that,
which is several times within such a request, though it leaves no garbage that only a collection finds.

Invariant: however many large requests there are, a full collection comes after `RARE_THRESHOLD` of its younger kind, so
that garbage does not pile up.
"""

import gc
from types import TracebackType

RARE_THRESHOLD = 300
"""Younger collections before a full one, of some 7,000 new objects each; a request of 100,000 elements makes 60."""


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
