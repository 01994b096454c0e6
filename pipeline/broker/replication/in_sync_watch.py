"""Who may be in sync with a leader of this broker, and which of its partitions want another ISR."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from pipeline.broker.cluster_view import ClusterView
from pipeline.model import BrokerId, TopicPartition


@dataclass(slots=True, eq=False)
class InSyncWatch:
    """What the partitions share. `max_lag_ms` is `replica.lag.time.max.ms`."""

    view: ClusterView
    max_lag_ms: int
    due: dict[TopicPartition, None] = field(default_factory=dict)
    """Those that may want another ISR."""
    woken: trio.Event = field(default_factory=trio.Event)

    def may_join(self, replica: BrokerId) -> bool:
        """It is alive and does not shut down."""
        return replica in self.view.brokers and replica not in self.view.shutting_down

    def look_at(self, topic_partition: TopicPartition) -> None:
        """It may want another ISR."""
        self.due[topic_partition] = None
        self.woken.set()

    def take(self) -> Sequence[TopicPartition]:
        """Those that are to be looked at now."""
        due = list(self.due)
        self.due.clear()
        self.woken = trio.Event()
        return due
