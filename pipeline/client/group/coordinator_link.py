"""Requests to the coordinator of a group, wherever it is.

Joins may wait at the coordinator for minutes, and heartbeats must not wait behind them or behind commits: each kind has
a lane of its own.
"""

from contextlib import suppress
from typing import Any

import trio

from pipeline.client.admin.groups import find_coordinator
from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.model import BrokerId
from pipeline.protocol.schema import Message

logger = get_logger(__name__)


class CoordinatorLink:
    """Knows the coordinator of one group, and finds it again."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._coordinator: BrokerId | None = None
        self._finding = trio.Lock()
        self._lanes = {kind: cluster.new_lane(f"group {kind}") for kind in ("joins", "heartbeats", "offsets")}

    async def find(self) -> BrokerId:
        """Return the coordinator. Raises KafkaError, NetworkError."""
        async with self._finding:
            if self._coordinator is None:
                timeout_s = self._cluster.config.request_timeout_ms / 1000
                found = await find_coordinator(self._cluster, self._group, timeout_s=timeout_s)
                if found not in self._cluster.view.brokers:
                    await self._cluster.refresh(timeout_s=timeout_s)
                self._coordinator = found
                logger.info("coordinator_found", group=self._group, broker=found)
            return self._coordinator

    def forget(self, coordinator: BrokerId | None = None) -> None:
        """Find the coordinator anew before the next request, unless it is another one than this by now."""
        if coordinator in (None, self._coordinator):
            self._coordinator = None

    async def ask(self, message: Message, *, kind: str, timeout_s: float) -> Any:
        """Send a request and return its response. Raises as `Cluster.request`, and KafkaError."""
        coordinator = await self.find()
        try:
            return await self._cluster.request(coordinator, message, timeout_s=timeout_s, lane=self._lanes[kind])
        except UNREACHABLE:
            self.forget(coordinator)
            self._cluster.refresh_soon()
            raise

    async def ask_while_coordinator(self, message: Message, *, kind: str, timeout_s: float) -> Any:
        """Ask as `ask` does, and give up with a return value of None once another broker is the coordinator.

        A coordinator that hangs would hold a join for as long as a rebalance may take.
        """
        coordinator = await self.find()
        answers: list[Any] = []
        async with background_tasks() as nursery:

            async def watch() -> None:
                while True:
                    await trio.sleep(self._cluster.config.request_timeout_ms / 1000)
                    with suppress(PipelineError):
                        if await find_coordinator(self._cluster, self._group) != coordinator:
                            self.forget(coordinator)
                            nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            answers.append(await self.ask(message, kind=kind, timeout_s=timeout_s))
        return answers[0] if answers else None

    def close(self) -> None:
        """Close the connections."""
        for lane in self._lanes.values():
            self._cluster.close_lane(lane)
