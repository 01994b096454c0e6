"""Leaves the ISRs of replicas whose log this broker cannot vouch for, before they have a role.

Invariants:

- Each replica is judged once in a process: when the broker joins, or later when a topic comes back that ZooKeeper had
  lost. The replica leaves the ISR then, if its log was lost or may lack its tail. If its log cannot be read it leaves
  the ISR to others, but not an empty one: the log may be whole at a later start.
- A log that was not judged goes on to count as one that may lack its tail, whatever becomes of this process.
"""

import uuid
from collections.abc import Iterable, Mapping

from pipeline.broker.cluster.own_states import ElectionCounts, claim_leaderships, leave_lost, leave_unreadable
from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.replicas.replicas import Replicas
from pipeline.coordination.interface import CoordinationClient
from pipeline.model import BrokerId, TopicPartition


class LostReplicas:
    """Judges the replicas of this broker. `counts` count the partitions that are led on uncleanly."""

    def __init__(
        self,
        zookeeper: CoordinationClient,
        view: ClusterView,
        replicas: Replicas,
        own_id: BrokerId,
        counts: ElectionCounts,
    ) -> None:
        self._zookeeper = zookeeper
        self._view = view
        self._replicas = replicas
        self._own_id = own_id
        self._counts = counts

    async def leave(self, names: Iterable[TopicPartition]) -> None:
        """Leave the ISRs of the partitions whose log is lost or may lack its tail."""
        judged = self._topic_ids(names)
        lacking = [name for name, topic_id in judged.items() if self._replicas.lacks(name, topic_id)]
        unreadable = [name for name in lacking if self._replicas.is_unreadable(name)]
        if unreadable:
            await leave_unreadable(self._zookeeper, self._view, self._own_id, unreadable)
        lost = [name for name in lacking if not self._replicas.is_unreadable(name)]
        if lost:
            alone = await leave_lost(self._zookeeper, self._view, self._own_id, lost)
            self._counts.unclean_elections += len(alone)
        await self._replicas.logs.settle(judged)

    async def leave_returned(self, topics: Iterable[str]) -> bool:
        """Call `leave` for the partitions of these topics that are about to be opened. The view may change meanwhile.

        Returns True if there were any.
        """
        seen: set[tuple[TopicPartition, uuid.UUID]] = set()
        while lost := self._find_lost(topics) - seen:
            seen |= lost
            names = sorted(topic_partition for topic_partition, _ in lost)
            await self.leave(names)
            await claim_leaderships(self._zookeeper, self._view, self._own_id, names)  # led on with what is left
        return bool(seen)

    def _find_lost(self, topics: Iterable[str]) -> set[tuple[TopicPartition, uuid.UUID]]:
        return {
            (topic_partition, topic.topic_id)
            for topic in map(self._view.topic, topics)
            if topic is not None
            for index, found in topic.partitions.items()
            if self._own_id in found.replicas
            and (topic_partition := TopicPartition(topic.name, index)) not in self._replicas.failed
            and self._replicas.lacks(topic_partition, topic.topic_id)
        }

    def _topic_ids(self, names: Iterable[TopicPartition]) -> Mapping[TopicPartition, uuid.UUID]:
        found = {topic_partition: self._view.topic(topic_partition.topic) for topic_partition in names}
        return {topic_partition: topic.topic_id for topic_partition, topic in found.items() if topic is not None}
