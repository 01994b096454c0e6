"""The time for which a member may be sure of its partitions without asking anybody. Pure.

Times are those at which a request was sent, so that the coordinator's own count has begun later:
- It removes a member `session_s` after the last request of the member that it carried out.
- In a rebalance it removes a member that has not joined again after `rebalance_s`. The rebalance has begun after the
  last heartbeat that was answered without REBALANCE_IN_PROGRESS was sent.
"""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Lease:
    """A member's hold on its partitions in one generation."""

    session_s: float
    rebalance_s: float
    _alive_at: float = -math.inf
    _settled_at: float = -math.inf

    def renew(self, sent_at: float, *, is_settled: bool = True) -> None:
        """Take note of an answer to a request. `is_settled` False: the group rebalances."""
        self._alive_at = max(self._alive_at, sent_at)
        if is_settled:
            self._settled_at = max(self._settled_at, sent_at)

    def end(self) -> None:
        """Hold nothing any more."""
        self._alive_at = self._settled_at = -math.inf

    def holds(self, now: float) -> bool:
        """Return True if no other member can have the partitions yet."""
        return now < self._alive_at + self.session_s and now < self._settled_at + self.rebalance_s
