"""Holds the bytes of reassignments below a rate (`leader.replication.throttled.rate` and its twin for followers). Pure.

Only partitions named in a topic's `*.replication.throttled.replicas` are counted, and only for a replica that is not in
the ISR: a replica that must keep up is never throttled (KIP-73). As in Kafka bytes count once they have arrived, so one
answer may exceed the rate; the pause after it makes up for that.
"""

from pipeline.broker.quotas.rate import SampledRate
from pipeline.model import MAX_INT64, BrokerId

WINDOW_S = 1.0
SAMPLES_KEPT = 11
EVERY_REPLICA = "*"


class ReplicationThrottle:
    """The rate of one direction. `now_s` never goes back."""

    __slots__ = ("_rate", "bytes_per_s")

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self._rate = SampledRate(WINDOW_S, SAMPLES_KEPT)

    @property
    def is_limited(self) -> bool:
        """True if there is a rate."""
        return self.bytes_per_s < MAX_INT64

    def count(self, size_bytes: int, now_s: float) -> None:
        """Note that so many bytes of throttled partitions were moved."""
        if self.is_limited:
            self._rate.charge(size_bytes, max(1, self.bytes_per_s), now_s)

    def pause_s(self, now_s: float) -> float:
        """Return the seconds until throttled partitions may move again; 0 if they may now."""
        return self._rate.owed(max(1, self.bytes_per_s), now_s) if self.is_limited else 0.0


def is_throttled(replicas: str, partition: int, broker: BrokerId) -> bool:
    """True if a topic's `*.replication.throttled.replicas` names this replica: `*`, or `partition:broker,...`."""
    return replicas == EVERY_REPLICA or f"{partition}:{broker}" in replicas.split(",")
