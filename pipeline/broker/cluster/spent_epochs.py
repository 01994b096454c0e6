"""Leader epochs that were used before ZooKeeper went back: no leader uses one again (decision 0034).

The states of an older backup name older leader epochs. Logs may hold records that others wrote in the same epochs, and
two records of one epoch and offset must be the same (KIP-101). So a replica takes no role in such an epoch: it writes
the state with an epoch above all that it knows of, and all replicas follow that state.

Invariant: the replicas that know most write first (decision 0045): the leader of the lost state at once, for its ISR is
the newest, then replicas that remember the state, last replicas that know older epochs from their logs alone.
"""

import math
from collections.abc import Mapping

import trio

from pipeline.broker.cluster.own_states import raise_epochs
from pipeline.broker.cluster.view import NO_BROKER, ClusterView, PartitionView
from pipeline.coordination.interface import CoordinationClient
from pipeline.diagnostics import get_logger
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from pipeline.net.signals import Wakeup

NAMED_IN_LOG = 10
RETRY_S = 0.5
LEADER_FIRST_S = 3.0
"""Time that the leader of a state that ZooKeeper lost has to write it again, before others do."""
REMEMBERED_FIRST_S = 6.0
"""Time that others that remember the state have, before replicas that do not raise the epoch in ZooKeeper."""

logger = get_logger(__name__)


class SpentEpochs:
    """Partitions whose leader epoch is to be raised, each with the newest epoch that was used."""

    def __init__(self) -> None:
        self._due: dict[TopicPartition, LeaderEpoch] = {}
        self._times_s: dict[TopicPartition, float] = {}
        self._noted = Wakeup()

    def note(self, topic_partition: TopicPartition, epoch: LeaderEpoch, wait_s: float = 0) -> None:
        """Note that the partition must be led in an epoch above this one; for `wait_s` others may write it."""
        self._due[topic_partition] = epoch
        at_s = trio.current_time() + wait_s
        self._times_s[topic_partition] = min(at_s, self._times_s.get(topic_partition, at_s))
        self._noted.set()

    async def take(self) -> Mapping[TopicPartition, LeaderEpoch]:
        """Wait until a partition is due, then return all that are due and not forgotten, with their epochs."""
        while True:
            now_s = trio.current_time()
            due = {name: epoch for name, epoch in self._due.items() if self._times_s[name] <= now_s}
            if due:
                return due
            with trio.move_on_at(min(self._times_s.values(), default=math.inf)):
                await self._noted.wait_and_clear()

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a partition: its epoch is raised, or the replica is not served any more."""
        self._due.pop(topic_partition, None)
        self._times_s.pop(topic_partition, None)


def raise_after_s(view: PartitionView, own: BrokerId) -> float:
    """Return for how long `own` leaves a state whose leader epoch is spent to others. Pure."""
    if not view.is_spent:
        return REMEMBERED_FIRST_S
    return 0 if view.leader == own else LEADER_FIRST_S


def spent_epoch(
    view: PartitionView, own: BrokerId, known_epoch: LeaderEpoch, last_epoch: LeaderEpoch
) -> LeaderEpoch | None:
    """Return the newest leader epoch already used if the view's epoch may not be used again, else None. Pure.

    `known_epoch` is the leader epoch that `own` last knew, `last_epoch` the epoch of the last record in its log. A new
    leader cannot have a record of its own epoch, and a follower cannot have a record of a later epoch.
    """
    if view.leader == NO_BROKER and not view.is_spent:
        return None
    is_in_log = view.leader_epoch <= last_epoch if view.leader == own else view.leader_epoch < last_epoch
    is_used = view.is_spent or is_in_log or view.leader_epoch < known_epoch
    return max(view.spent_epoch, known_epoch, last_epoch) if is_used else None


async def raise_spent_epochs(zookeeper: CoordinationClient, view: ClusterView, spent_epochs: SpentEpochs) -> None:
    """Raise the leader epochs that are noted, until cancelled."""
    while True:
        due = await spent_epochs.take()
        known = {name: epoch for name, epoch in due.items() if view.partition(name) is not None}
        for name in known:
            spent_epochs.forget(name)
        raised = await raise_epochs(zookeeper, view, known)
        if raised:
            named = [str(name) for name in raised[:NAMED_IN_LOG]]
            logger.warning("leader_epochs_raised", count=len(raised), named=named, reason="they were used before")
        if len(known) < len(due):  # a topic that is missing may be back before its replicas are closed
            await trio.sleep(RETRY_S)
