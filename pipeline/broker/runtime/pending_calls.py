"""Calls for partitions that may wait for a disk: a caller waits a bounded time, and is woken when a late call ends.

Invariants:

- A partition is busy from the beginning to the end of a call for it, even if no caller waits. Meanwhile no other call
  opens or removes its log, or gives it a role.
- A call that took longer than its caller waited is reported at its end (`wait_for_late_ones`), when its partitions are
  free.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from pipeline.broker.runtime.disk_threads import STALLED_S
from pipeline.model import TopicPartition
from pipeline.net.signals import Wakeup

Call = Callable[[], Awaitable[None]]
"""A function that raises nothing: its caller may have gone."""


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call under way."""

    names: Collection[TopicPartition]
    log_dir: Path
    ended: trio.Event = field(default_factory=trio.Event)
    is_late: bool = False


class PendingCalls:
    """The calls of one broker; `run` holds their tasks. Without `run` a call ends before `begin` returns."""

    def __init__(self) -> None:
        self._busy: dict[TopicPartition, PendingCall] = {}
        self._tasks: trio.Nursery | None = None
        self._late_ended = Wakeup()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the tasks of calls until cancelled."""
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._tasks = None

    def is_busy(self, topic_partition: TopicPartition) -> bool:
        """True if a call for this partition is under way."""
        return topic_partition in self._busy

    def find(self, topic_partition: TopicPartition) -> PendingCall | None:
        """Return the call for this partition that is under way, or None."""
        return self._busy.get(topic_partition)

    async def begin(self, pending: PendingCall, call: Call) -> None:
        """Begin a call for partitions that are not busy."""
        self._busy.update(dict.fromkeys(pending.names, pending))
        if self._tasks is None:
            await self._carry_out(pending, call)
        else:
            self._tasks.start_soon(self._carry_out, pending, call)

    async def _carry_out(self, pending: PendingCall, call: Call) -> None:
        try:
            await call()
        finally:
            for name in pending.names:
                del self._busy[name]
            pending.ended.set()
            if pending.is_late:
                self._late_ended.set()

    async def wait(self, calls: Iterable[PendingCall], patience_s: float = STALLED_S) -> None:
        """Return when all these calls have ended, or after `patience_s`; unfinished calls go on, and are late.

        Calls that are late already are not waited for.
        """
        waiting = [pending for pending in calls if not pending.is_late]
        with trio.move_on_after(patience_s):
            for pending in waiting:
                await pending.ended.wait()
        for pending in waiting:
            pending.is_late = not pending.ended.is_set()

    async def wait_until_free(self, names: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Wait for the calls for these partitions, as `wait` does; return the partitions that are still busy."""
        busy = {name: self._busy[name] for name in names if name in self._busy}
        if busy:
            await self.wait(dict.fromkeys(busy.values()))
        return frozenset(name for name in busy if name in self._busy)

    async def wait_for_late_ones(self) -> None:
        """Return when a late call has ended since the last return."""
        await self._late_ended.wait_and_clear()
