"""Runs the parts of a broker that serve groups: the journal, the coordinator and the keeper of offsets.

Invariant: the coordinator loads a group after its offsets are loaded, and unloads it before them.
"""

import random

import trio

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.groups.coordinator import GroupCoordinator
from pipeline.broker.groups.group import GroupLimits
from pipeline.broker.groups.journal import GroupJournal
from pipeline.broker.groups.offset_keeper import OffsetKeeper
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.model import Clock

MINUTE_MS = 60_000


class GroupService:
    """The journal, the coordinator and the keeper of offsets."""

    def __init__(
        self, config: BrokerConfig, view: ClusterView, clock: Clock, rng: random.Random, kept: KeptMemory
    ) -> None:
        self.journal = GroupJournal(
            view, clock, partitions=config.offsets_topic_num_partitions, timeout_ms=config.offsets_commit_timeout_ms
        )
        self.kept = kept
        limits = GroupLimits(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms, max_size=config.group_max_size
        )
        self.coordinator = GroupCoordinator(self.journal, limits, clock, rng, kept)
        retention_ms = config.offsets_retention_minutes * MINUTE_MS
        self.offsets = OffsetKeeper(self.journal, self.coordinator, clock, kept, retention_ms=retention_ms)
        self._check_interval_ms = config.offsets_retention_check_interval_ms
        self.journal.subscribe(self.offsets)  # before the coordinator: the invariant
        self.journal.subscribe(self.coordinator)
        view.subscribe_deletions(self.offsets.forget_topic)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load, write, fire timers, and remove offsets that expire or whose topic is deleted, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.journal.run)
            await nursery.start(self.coordinator.runtime.run)
            nursery.start_soon(self.offsets.forget_for_ever)
            nursery.start_soon(self.offsets.expire_for_ever, self._check_interval_ms)
            task_status.started()
