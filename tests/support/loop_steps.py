"""How long tasks hold the event loop, by processor time."""

import time

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
