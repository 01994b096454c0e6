"""Counts and times of requests by api key, as in Kafka's RequestMetrics. Plain numbers, cheap to add to.

Stages of a request: queue (from the arrival of its last bytes), local (the handler's own work), remote (the handler
waits), response queue (until the answer is being sent), send. Their sum is the total.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

TOTAL_BOUNDS_MS = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000)
"""Upper bounds of the buckets of total times; the last bucket has none."""


@dataclass(slots=True)
class RequestStatistics:
    """Statistics of an api key. Requests without an answer (Produce with acks=0) count when they are handled."""

    requests: int = 0
    failed: int = 0
    """Requests that ended their connection."""
    request_bytes: int = 0
    response_bytes: int = 0
    request_queue_s: float = 0.0
    local_s: float = 0.0
    remote_s: float = 0.0
    throttle_s: float = 0.0
    response_queue_s: float = 0.0
    response_send_s: float = 0.0
    total_s: float = 0.0
    total_buckets: list[int] = field(default_factory=lambda: [0] * (len(TOTAL_BOUNDS_MS) + 1))
    errors: dict[int, int] = field(default_factory=dict)
    """Number of answers by error code. An answer for several partitions may have several."""

    def sent(self, arrived: float, answered: float, started: float, ended: float) -> None:
        """Count a request whose answer was sent, or that needs none."""
        self.requests += 1
        self.response_queue_s += started - answered
        self.response_send_s += ended - started
        total_s = ended - arrived
        self.total_s += total_s
        self.total_buckets[bisect_left(TOTAL_BOUNDS_MS, total_s * 1000)] += 1
