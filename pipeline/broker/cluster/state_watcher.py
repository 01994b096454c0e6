"""Follows the states of all partitions by the notifications of their writers, without a watch for each.

Invariants:

- Every znode below `/isr_change_notification` names partitions whose states were written with it. Each znode is read
  once, then those states; so the view holds every state some time after it was written.
- If notifications were removed before they were read, all states are read again. So they are after each connection:
  ZooKeeper may have gone back meanwhile, and counts its notifications through the same numbers again.
- A state is taken for the topic whose id was known before it was read.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

import trio

from pipeline.broker.cluster.view import ClusterView
from pipeline.coordination.cluster_znodes import STATE_CHANGES, decode_state_change
from pipeline.coordination.interface import MAX_AT_ONCE, CoordinationClient, SessionState
from pipeline.coordination.partition_states import RETRY_S, look_up_states
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError, CoordinationUnavailableError
from pipeline.model import TopicPartition

_DIGITS = 10
_NOTIFICATION = re.compile(r"isr_change_[0-9]{10}")
"""Names of notifications; other znodes there are ignored."""

_Answer = TypeVar("_Answer")

logger = get_logger(__name__)


class StateWatcher:
    """The task that follows the states, and reads them on request."""

    def __init__(self, zookeeper: CoordinationClient, view: ClusterView) -> None:
        self._zookeeper = zookeeper
        self._view = view
        self._newest = -1

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow until cancelled. Reports started when no notification can be missed any more."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_after_each_connection)
            await self._follow(task_status)

    async def _read_after_each_connection(self) -> None:
        is_first = True
        async for event in self._zookeeper.sessions():
            if event.state is SessionState.CONNECTED and not is_first:
                await self.read_all()
            is_first = False

    async def _follow(self, task_status: trio.TaskStatus[None]) -> None:
        is_started = False
        async for names in self._zookeeper.watch_children(STATE_CHANGES):
            numbers = {int(name[-_DIGITS:]): name for name in names if _NOTIFICATION.fullmatch(name)}
            if not is_started:
                self._newest = max(numbers, default=-1)
                is_started = True
                task_status.started()
                continue
            changed = None
            if not self._is_purged(numbers):
                new = sorted(number for number in numbers if number > self._newest)
                changed = await self._changed([f"{STATE_CHANGES}/{numbers[number]}" for number in new])
            self._newest = max(numbers, default=-1)
            if changed is None:
                logger.info("states_read_again", reason="notifications were gone before they were read")
                await self.read_all()
            else:
                await self.read(changed)

    def _is_purged(self, numbers: Collection[int]) -> bool:
        """True if there may have been others between the newest known notification and the oldest one there is."""
        if not numbers:
            return self._newest >= 0
        return self._newest not in numbers and min(numbers) != self._newest + 1

    async def _changed(self, paths: Sequence[str]) -> list[TopicPartition] | None:
        """Return the partitions that these notifications name; None if a notification is gone."""
        changed: dict[TopicPartition, None] = {}
        for start in range(0, len(paths), MAX_AT_ONCE):
            part = paths[start : start + MAX_AT_ONCE]
            for path, value in zip(part, await patiently(partial(self._zookeeper.get_each, part)), strict=True):
                if value is None:
                    return None
                try:
                    changed.update(dict.fromkeys(decode_state_change(path, value.data)))
                except CoordinationError as error:
                    logger.error("state_change_unreadable", error=str(error))
        return list(changed)

    async def read_all(self) -> None:
        """Read the states of all partitions that are known."""
        await self.read(
            [TopicPartition(topic.name, index) for topic in self._view.topics() for index in sorted(topic.partitions)]
        )

    async def read(self, partitions: Sequence[TopicPartition]) -> None:
        """Read the states of these partitions into the view."""
        for start in range(0, len(partitions), MAX_AT_ONCE):
            part = partitions[start : start + MAX_AT_ONCE]
            asking = self._view.asking(part)
            known = [topic_partition for topic_partition in part if topic_partition.topic in asking.topic_ids]
            found, others = await patiently(partial(look_up_states, self._zookeeper, known))
            self._view.accept_states(asking, found)
            self._view.accept_lost(asking, others)


async def patiently(read: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Return what `read` returns. Waits for as long as ZooKeeper is away."""
    while True:
        try:
            return await read()
        except CoordinationUnavailableError as error:
            logger.warning("zookeeper_read_again", path=error.path, reason=error.reason)
            await trio.sleep(RETRY_S)
