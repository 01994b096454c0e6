"""Bounds of the bytes per second that a consumer fetches. Pure: times are passed in, in seconds of one clock.

Bytes are charged when they have arrived, and nothing more is requested before they are paid for. So a bound holds on
average, whatever the size of batches; a partition gets whole batches, also ones larger than its bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

BURST_S = 0.5
"""Time of silence that may be made up for at once."""
CHUNK_S = 0.25
"""Part of a second whose bytes one request asks for at most."""


@dataclass(slots=True)
class ByteRate:
    """Bytes per second, None for any number, and the time from which on the next bytes may be requested."""

    bytes_per_s: int | None = None
    opens_at: float = 0.0

    def charge(self, size: int, now: float) -> None:
        """Take note of bytes that have arrived."""
        if self.bytes_per_s is not None:
            self.opens_at = max(self.opens_at, now - BURST_S) + size / self.bytes_per_s

    def change(self, bytes_per_s: int | None, now: float) -> None:
        """Have another bound from now on. Bytes that are not paid for yet are paid for at the new rate."""
        debt = max(0.0, self.opens_at - now) * (self.bytes_per_s or 0)
        if bytes_per_s != self.bytes_per_s:
            self.opens_at = 0.0 if bytes_per_s is None or not debt else now + debt / bytes_per_s
        self.bytes_per_s = bytes_per_s


@dataclass(frozen=True, slots=True)
class FetchLimit:
    """The bounds that partitions share: all of them hold."""

    rates: Sequence[ByteRate]

    @property
    def opens_at(self) -> float:
        """Time from which on the partitions may be requested."""
        return max((rate.opens_at for rate in self.rates if rate.bytes_per_s is not None), default=0.0)

    def charge(self, size: int, now: float) -> None:
        """Take note of bytes that have arrived."""
        for rate in self.rates:
            rate.charge(size, now)

    def max_bytes(self) -> int | None:
        """Return the bytes that one request may ask for; None for any number."""
        bounds = [rate.bytes_per_s for rate in self.rates if rate.bytes_per_s is not None]
        return max(1, int(min(bounds) * CHUNK_S)) if bounds else None
