"""Holds the bytes of reassignments below a rate (`leader.replication.throttled.rate` and its twin for followers). Pure.

Only partitions named in a topic's `*.replication.throttled.replicas` are counted, and only for a replica that is not in
the ISR: one that must keep up is never held back (KIP-73). As in Kafka the bytes that were moved count when they are
there, so a rate may be exceeded by one answer, which is paid for by the time after it.
"""

from pipeline.broker.quotas.rate import SampledRate
from pipeline.model import BrokerId
from pipeline.settings import MAX_INT64

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
        """Is there a rate at all?"""
        return self.bytes_per_s < MAX_INT64

    def count(self, size_bytes: int, now_s: float) -> None:
        """So many bytes of throttled partitions were moved."""
        if self.is_limited:
            self._rate.charge(size_bytes, max(1, self.bytes_per_s), now_s)

    def pause_s(self, now_s: float) -> float:
        """Seconds until throttled partitions may move again; 0 if they may now."""
        return self._rate.owed(max(1, self.bytes_per_s), now_s) if self.is_limited else 0.0


def is_throttled(replicas: str, partition: int, broker: BrokerId) -> bool:
    """Does a topic's `*.replication.throttled.replicas` name this replica? `*`, or `partition:broker,...`."""
    if not replicas:
        return False
    return replicas == EVERY_REPLICA or f"{partition}:{broker}" in replicas.split(",")
