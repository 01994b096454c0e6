"""Lost replicas: leave the ISR before they have a role, for this broker cannot vouch for their log.

Invariants:

- Each replica is judged once in a process: when the broker joins, or later when a topic comes back that ZooKeeper had
  lost. The replica leaves the ISR then if its log was lost or may lack its tail. A replica whose log cannot be read
  leaves the ISR only if it has other members: the log may be whole at a later start.
- A log that was not judged goes on to count as one that may lack its tail, also after a restart.
- A broker is registered only with the names of all replicas that it cannot vouch for (`find_unable`), and a name is
  withdrawn only once their ISR was left. Otherwise a controller would take dead replicas, which have everything, out of
  the ISR for the sake of this one, which then leaves an empty ISR behind.
"""

import uuid
from collections.abc import Iterable, Set
from dataclasses import dataclass

from pipeline.broker.cluster.own_states import ElectionCounts, claim_leaderships, leave_lost, leave_unreadable
from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.replicas.replicas import Replicas
from pipeline.coordination.interface import CoordinationClient
from pipeline.log.directories.logs_set_aside import LogName
from pipeline.model import BrokerId, TopicPartition


@dataclass(slots=True, eq=False)
class LostReplicas:
    """Judges the replicas of this broker. `counts` count the partitions that are led on uncleanly."""

    zookeeper: CoordinationClient
    view: ClusterView
    replicas: Replicas
    own_id: BrokerId
    counts: ElectionCounts

    async def leave(self, names: Iterable[TopicPartition]) -> None:
        """Leave the ISRs of the partitions whose log is lost or may lack its tail."""
        topics = {name: topic for name in names if (topic := self.view.topic(name.topic)) is not None}
        judged = {name: topic.topic_id for name, topic in topics.items()}
        lacking = [name for name, topic_id in judged.items() if self.replicas.lacks(name, topic_id)]
        unreadable = [name for name in lacking if self.replicas.is_unreadable(name)]
        if unreadable:
            await leave_unreadable(self.zookeeper, self.view, self.own_id, unreadable)
        lost = [name for name in lacking if not self.replicas.is_unreadable(name)]
        if lost:
            alone = await leave_lost(self.zookeeper, self.view, self.own_id, lost)
            self.counts.unclean_elections += len(alone)
        await self.replicas.logs.settle(judged)

    def find_unable(self) -> Set[TopicPartition]:
        """Return the replicas that must not be elected: failed ones, and logs that may lack their tail.

        Reads no log dir, for a hung disk must not delay the report.
        """
        served, names, failed = self.replicas.partitions, list[LogName](), set(self.replicas.failed)
        for directory in self.replicas.directories.opened:
            if directory.failure is None:
                logs = directory.logs.copy()
                names += [LogName(name, log.topic_id) for name, log in logs.items() if name not in served]
                names += list(directory.set_aside.paths)
                failed.update(name for name in list(directory.failed) if name not in served)
        return failed | {
            name for name, topic_id in names if topic_id is not None and self.replicas.lacks(name, topic_id)
        }

    async def leave_returned(self, topics: Iterable[str]) -> bool:
        """Call `leave` for lost partitions of these topics before they are opened. Return True if there were any.

        The view may change meanwhile.
        """
        seen: set[tuple[TopicPartition, uuid.UUID]] = set()
        while lost := self._find_lost(topics) - seen:
            seen |= lost
            names = sorted(topic_partition for topic_partition, _ in lost)
            await self.leave(names)
            # Partitions of one replica are led on with what is left of their log.
            await claim_leaderships(self.zookeeper, self.view, self.own_id, names)
        return bool(seen)

    def _find_lost(self, topics: Iterable[str]) -> set[tuple[TopicPartition, uuid.UUID]]:
        return {
            (topic_partition, topic.topic_id)
            for topic in map(self.view.topic, topics)
            if topic is not None
            for index, found in topic.partitions.items()
            if self.own_id in found.replicas
            and (topic_partition := TopicPartition(topic.name, index)) not in self.replicas.failed
            and self.replicas.lacks(topic_partition, topic.topic_id)
        }
