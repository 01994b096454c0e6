"""Counts the idempotent producers that all logs of this process remember, and bounds their number.

Invariant: a producer is forgotten for its silence alone. If it were forgotten to make room, a batch of it that was
acknowledged would be appended again when it is sent a second time. So leaders refuse *new* producers at the bound.
Followers and mirrors accept what a leader has accepted, and a start accepts what is in the log.
"""

import threading

from pipeline.errors import TooManyProducersError

DEFAULT_MAX_PRODUCERS = 40_000
"""A producer takes about 550 bytes, with its remembered batches."""


class KnownProducers:
    """The count, and its bound. Safe for threads."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self._lock = threading.Lock()

    def resize(self, capacity: int) -> None:
        """Set the bound. Producers beyond it are remembered all the same."""
        self.capacity = capacity

    def add(self, number: int) -> None:
        """Count producers that a log remembers from now on, or, if negative, has forgotten."""
        with self._lock:
            self.count += number

    def check_room(self, producer_id: int, number: int = 1) -> None:
        """Raise TooManyProducersError if there is no room for this many new producers, of which this is one."""
        if self.count + number > self.capacity:
            raise TooManyProducersError(producer_id, self.capacity)


KNOWN_PRODUCERS = KnownProducers(DEFAULT_MAX_PRODUCERS)
"""The count of this process."""
