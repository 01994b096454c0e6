"""How long tasks hold the event loop, by processor time."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Steps(trio.abc.Instrument):
    """The processor time of the longest step of any task but those that watch, between two turns of the event loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._ignored: set[trio.lowlevel.Task] = set()
        self._began_s = 0.0

    def ignore(self) -> None:
        self._ignored.add(trio.lowlevel.current_task())

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task not in self._ignored:
            self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)


@contextmanager
def measured_steps() -> Iterator[Steps]:
    """Measure the steps of all tasks but this one, for as long as the context lasts.

    What other tests left in this process is kept out of garbage collections, as a broker does with its own start.
    """
    steps = Steps()
    steps.ignore()
    gc.collect()
    gc.freeze()
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps
    finally:
        trio.lowlevel.remove_instrument(steps)
        gc.unfreeze()
