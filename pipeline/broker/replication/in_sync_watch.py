"""Queue of partitions whose ISR may have to change, and the brokers alive to join one; `in_sync_replicas` decides."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.broker.cluster.view import ClusterView
from pipeline.model import BrokerId, TopicPartition
from pipeline.net.signals import Wakeup


@dataclass(slots=True, eq=False)
class InSyncWatch:
    """Settings and queue that the partitions share. `max_lag_s` is `replica.lag.time.max.ms` in seconds."""

    view: ClusterView
    max_lag_s: float
    due: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions whose ISR may have to change."""
    woken: Wakeup = field(default_factory=Wakeup)

    def may_join(self, replica: BrokerId) -> bool:
        """True if the broker of the replica is alive and not shutting down."""
        return replica in self.view.brokers and replica not in self.view.shutting_down

    def epoch_of(self, replica: BrokerId) -> int | None:
        """The epoch under which the broker is registered, as far as this one knows; None if it is not registered."""
        found = self.view.brokers.get(replica)
        return None if found is None else found.epoch

    def look_at(self, topic_partition: TopicPartition) -> None:
        """Note that the ISR of this partition may have to change."""
        self.due[topic_partition] = None
        self.woken.set()

    def take(self) -> Sequence[TopicPartition]:
        """Take the partitions whose ISR may have to change."""
        due = list(self.due)
        self.due.clear()
        return due
