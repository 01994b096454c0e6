"""Records that a disk held when its machine lost the power.

Rule: whatever a log had synced is in it when it is opened next. What the log knew as synced in its last life counts.
"""

from dataclasses import dataclass, field

from pipeline.broker.replication.partition import Partition
from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.testing.simulation.watermark_rules import Place, place_of


@dataclass(eq=False)
class SyncedRules:
    """Judges; `problems` are sentences."""

    problems: list[str] = field(default_factory=list)
    _open: dict[tuple[BrokerId, TopicPartition], Partition] = field(default_factory=dict)
    _synced: dict[tuple[BrokerId, Place], Offset] = field(default_factory=dict)

    def opened(self, broker: BrokerId, partition: Partition) -> None:
        """A log was opened, and not truncated yet."""
        self._open[broker, partition.topic_partition] = partition
        synced = self._synced.pop((broker, place_of(partition)), None)
        end = partition.log.log_end_offset
        if synced is not None and end < synced:
            name = f"{partition.topic_partition} on broker {broker}"
            self.problems.append(f"{name}: had synced up to {synced}, and ends at {end} with the power back")

    def removed(self, broker: BrokerId, topic_partition: TopicPartition) -> None:
        """A log is removed, which may be one that was not opened since the power was lost: a stray."""
        self._open.pop((broker, topic_partition), None)
        for owner, place in [*self._synced]:
            if (owner, place[0]) == (broker, topic_partition):
                del self._synced[owner, place]

    def lost_power(self, broker: BrokerId) -> None:
        """A machine has lost what it had not synced."""
        for (owner, _), partition in self._open.items():
            if owner == broker and partition.log.failure is None:
                self._synced[broker, place_of(partition)] = partition.log.recovery_point
