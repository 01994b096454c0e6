"""Bounds of the bytes per second that a consumer fetches. Pure: times are passed in, in seconds of one clock.

Invariants:

- Bytes are charged when they have arrived, and nothing more is requested before they are paid for. So a bound holds on
  average, whatever the size of batches; a partition gets whole batches, also ones larger than its bound.
- Requests for a backlog that are under way ask for the bytes of UNDER_WAY_S together, or there is only one of them.
  Each counts with the size of the latest answer, if that is larger: with batches larger than the bound there is only
  one. So the number of connections makes no burst.
- Askers whose requests find no room take turns: the one that has waited longest is the first. An asker that no longer
  asks is waited for WAITED_FOR_S at most.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

BURST_S = 0.5
"""Time of silence that may be made up for at once."""
CHUNK_S = 0.25
"""Part of a second whose bytes one request asks for at most."""
UNDER_WAY_S = 1.0
"""Time whose bytes all requests under way ask for at most."""
LATE_AFTER_S = 3.0
"""Time after which a request counts no longer as under way, so that a source that hangs does not hold up others."""
WAITED_FOR_S = 0.2
"""Time for which an asker that found no room is waited for. Askers look again in shorter intervals."""


@dataclass(slots=True)
class ByteRate:
    """Bytes per second, None for any number, and the time from which on the next bytes may be requested."""

    bytes_per_s: int | None = None
    opens_at: float = 0.0
    _answer_bytes: int = 0
    """Size of the latest answer."""
    _under_way: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Bytes that requests for a backlog ask for, and the times at which they left."""
    _waiting: dict[Hashable, float] = field(default_factory=dict)
    """Times at which askers found no room last. The asker that has waited longest is the first."""

    def has_room(self, asker: Hashable, now: float) -> bool:
        """True if another request for a backlog may leave, and it is the asker's turn. An asker without room waits."""
        if self.bytes_per_s is None:
            return True
        while self._waiting:
            first = next(iter(self._waiting))
            if first == asker or now <= max(self._waiting[first], self.opens_at) + WAITED_FOR_S:
                break
            del self._waiting[first]
        asked = [size for size, begun_at in self._under_way.values() if now < begun_at + LATE_AFTER_S]
        is_full = bool(asked) and sum(asked) >= self.bytes_per_s * UNDER_WAY_S
        if not is_full and next(iter(self._waiting), asker) == asker:
            return True
        self._waiting[asker] = now
        return False

    def begin(self, request: int, size: int, asker: Hashable, now: float) -> None:
        """Take note of a request, or of more bytes of it. The asker waits no longer."""
        self._waiting.pop(asker, None)
        before, begun_at = self._under_way.get(request, (0, now))
        self._under_way[request] = before + max(size, self._answer_bytes), begun_at

    def end(self, request: int) -> None:
        """Take note that a request has ended."""
        self._under_way.pop(request, None)

    def charge(self, size: int, now: float) -> None:
        """Take note of bytes that have arrived."""
        self._answer_bytes = size
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

    def has_room(self, asker: Hashable, now: float) -> bool:
        """True if another request for a backlog may leave now, and no other asker has waited longer for that."""
        return all(rate.has_room(asker, now) for rate in self.rates)

    def begin(self, request: int, asker: Hashable, now: float) -> None:
        """Take note of a request for a backlog; `request` is any number of its own."""
        for rate in self.rates:
            rate.begin(request, self.max_bytes() or 0, asker, now)

    def end(self, request: int) -> None:
        """Take note that a request has ended."""
        for rate in self.rates:
            rate.end(request)

    def charge(self, size: int, now: float) -> None:
        """Take note of bytes that have arrived."""
        for rate in self.rates:
            rate.charge(size, now)

    def max_bytes(self) -> int | None:
        """Return the bytes that one request may ask for; None for any number."""
        bounds = [rate.bytes_per_s for rate in self.rates if rate.bytes_per_s is not None]
        return max(1, int(min(bounds) * CHUNK_S)) if bounds else None
