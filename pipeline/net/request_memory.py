"""The memory that requests under way may take together (`queued.max.request.bytes`): who may take how much. Pure.

Only requests that do not fit into the receive buffer (64 KiB) take from here, and they take bit by bit, as their bytes
come. So many requests that are half received can fill the memory and each wait for the others; the rules below see to
it that somebody always goes on.

Invariants
  A. The request that began first goes first: nobody is given memory as long as an older request waits for some.
  B. What is held is at most the capacity, but for C.
  C. When all requests that hold memory wait for more, the oldest is given what it wants all the same. It stays the
     oldest until it is handled, so the capacity is exceeded by one request at most.
  D. As long as somebody waits, a request that has room and does not use it (fewer than 64 KiB since the check before)
     is ended, and so is an answer that its client does not read (likewise), and a request that waited for 30 s: a
     client gives up about then. So nobody waits for ever.

A claim goes through these states:
    idle -> receiving (took some) -> waiting (wants more) -> receiving -> complete (all has come) -> sending
    (answered) -> idle (released; from any other state, too). One that is complete may ask for more, and is complete
    again after that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

CHECK_S = 5.0
MAX_WAIT_S = 30.0
MIN_BYTES_PER_CHECK = 64 * 1024


class ClaimState(Enum):
    """Where a claim is."""

    IDLE = auto()
    RECEIVING = auto()
    WAITING = auto()
    COMPLETE = auto()
    SENDING = auto()


@dataclass(slots=True, eq=False)
class Claim:
    """What the present request of one connection holds. Its owner adds to `moved_bytes` what comes and goes."""

    state: ClaimState = ClaimState.IDLE
    number: int = 0
    held: int = 0
    wanted: int = 0
    waits_since: float = 0.0
    moved_bytes: int = 0
    checked_bytes: int = 0
    checked: int = -1


@dataclass(slots=True)
class RequestMemory:
    """The claims of all connections. A capacity of None has no end."""

    capacity: int | None
    held: int = 0
    _claims: set[Claim] = field(default_factory=set)
    _waiting: dict[int, Claim] = field(default_factory=dict)
    _last_number: int = 0
    _check: int = 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def take(self, claim: Claim, size: int, now: float) -> Sequence[Claim]:
        """Ask for more, as time `now`. Returns who may go on, which may be others and must not be the one that asks."""
        if claim.state is ClaimState.IDLE:
            self._last_number += 1
            claim.number = self._last_number
            claim.moved_bytes, claim.checked = 0, -1
            self._claims.add(claim)
        if self._fits(size) and not (self._waiting and min(self._waiting) < claim.number):
            self._give(claim, size)
            return (claim,)
        claim.state, claim.wanted, claim.waits_since = ClaimState.WAITING, size, now
        self._waiting[claim.number] = claim
        return self._go_on()

    def complete(self, claim: Claim) -> None:
        """All of the request has come."""
        claim.state = ClaimState.COMPLETE

    def send(self, claim: Claim) -> None:
        """The request was answered; its memory is held until the answer is sent."""
        claim.state, claim.checked = ClaimState.SENDING, -1

    def release(self, claim: Claim) -> Sequence[Claim]:
        """The request was handled or is given up. Returns who may go on now."""
        self._claims.discard(claim)
        self._waiting.pop(claim.number, None)
        self.held -= claim.held
        claim.state, claim.held = ClaimState.IDLE, 0
        return self._go_on()

    def overdue(self, now: float) -> Sequence[Claim]:
        """Who must be ended (D). To be asked every `CHECK_S`."""
        self._check += 1
        if not self._waiting:
            return ()
        ended = []
        for claim in self._claims:
            if claim.state is ClaimState.WAITING:
                if now - claim.waits_since > MAX_WAIT_S:
                    ended.append(claim)
            elif claim.state in {ClaimState.RECEIVING, ClaimState.SENDING}:
                was_there = claim.checked == self._check - 1
                if was_there and claim.moved_bytes - claim.checked_bytes < MIN_BYTES_PER_CHECK:
                    ended.append(claim)
                claim.checked, claim.checked_bytes = self._check, claim.moved_bytes
        return ended

    def _fits(self, size: int) -> bool:
        return self.capacity is None or self.held + size <= self.capacity

    def _give(self, claim: Claim, size: int) -> None:
        self.held += size
        claim.held += size
        claim.state, claim.wanted = ClaimState.RECEIVING, 0

    def _go_on(self) -> Sequence[Claim]:
        """Give to those who wait, the oldest first, as long as there is room (A, B) or nobody else goes on (C)."""
        given = []
        while self._waiting:
            claim = self._waiting[min(self._waiting)]
            if not self._fits(claim.wanted) and len(self._waiting) < len(self._claims):
                break
            del self._waiting[claim.number]
            self._give(claim, claim.wanted)
            given.append(claim)
        return given
