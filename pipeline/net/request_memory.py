"""Memory that the requests under way may take together (`queued.max.request.bytes`): who takes how much. Pure.

Only requests that do not fit into the receive buffer (64 KiB) take memory here, piece by piece as their bytes come.
Many half-received requests could fill the memory, each waiting for the others; the rules below ensure that one of them
always goes on.

Invariants
  A. Requests of one kind go in the order in which they began: none is given memory while an older one waits.
  B. The held memory never exceeds the capacity, except for a single request that is larger. Each claim says beforehand
     how much it may take in all (`whole`). Memory is given only if afterwards this claim and all older ones could take
     the rest of theirs, one after the other, from the free memory and from what the finished ones return. So requests
     that hold memory never wait for each other.
  C. Several kinds of requests may share memory (`share`). Each kind may always hold its `least`; memory beyond that is
     taken from the others, by the rule of B: the claim and the older ones of its kind could finish even if the other
     kinds returned nothing. So no two kinds wait for each other. A request that holds nothing yet takes nothing beyond
     the least of its kind while an older request of another kind waits.
  D. While a request waits, another is ended if it has memory and does not use it (fewer than 64 KiB since the last
     check), if its client does not read the answer (likewise), or if it has waited for 30 s, when clients give up. So
     no request waits for ever. A kind that holds no more than its least is exempt.

States of a claim:
    idle -> receiving (took some) -> waiting (wants more) -> receiving -> complete (all bytes have come) -> sending
    (answered) -> idle (released; possible from every state). A complete claim may ask for more, and is complete again
    after that.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count

CHECK_S = 5.0
MAX_WAIT_S = 30.0
MIN_BYTES_PER_CHECK = 64 * 1024


class ClaimState(Enum):
    """State of a claim (see the module)."""

    IDLE = auto()
    RECEIVING = auto()
    WAITING = auto()
    COMPLETE = auto()
    SENDING = auto()


def _end_nothing(_reason: str) -> None:
    """Stand for the connection of a claim without one."""


def _notify_nobody() -> None:
    """Stand for the connection of a claim without one."""


@dataclass(slots=True, eq=False)
class Claim:
    """Memory of the present request of a connection, which adds received and sent bytes to `moved_bytes`.

    `end` ends the connection, for the given reason. `on_granted` notifies it that the claim waits no longer.
    """

    end: Callable[[str], None] = _end_nothing
    on_granted: Callable[[], None] = _notify_nobody
    state: ClaimState = ClaimState.IDLE
    number: int = 0
    whole: int = 0
    """Bound of `held`."""
    held: int = 0
    wanted: int = 0
    waits_since: float = 0.0
    moved_bytes: int = 0
    checked_bytes: int = 0
    checked: int = -1


@dataclass(slots=True)
class RequestMemory:
    """Claims of all connections to one kind of memory. A capacity of None is unlimited."""

    capacity: int | None
    least: int = 0
    held: int = 0
    _beside: Sequence["RequestMemory"] = ()
    _claims: dict[Claim, None] = field(default_factory=dict)
    """Claims by number."""
    _promised: int = 0
    """Sum of `whole` of all claims."""
    _largest: int = 0
    """An upper bound of every `whole`."""
    _waiting: dict[int, Claim] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _check: int = 0

    @property
    def waiting(self) -> int:
        """Number of claims that wait."""
        return len(self._waiting)

    def take(self, claim: Claim, size: int, now: float, whole: int = 0) -> Sequence[Claim]:
        """Ask for `size` more bytes at time `now`. Return the claims that may go on, which may be others than this one.

        `whole`: with the first request of a claim, the most that it will hold.
        """
        if claim.state is ClaimState.IDLE:
            claim.number = next(self._numbers)
            claim.moved_bytes, claim.checked = 0, -1
            self._claims[claim] = None
        if claim.held + size > claim.whole:
            self._promise(claim, max(whole, claim.held + size))
        if not (self._waiting and min(self._waiting) < claim.number) and self._fits(claim, size):
            self._give(claim, size)
            return (claim,)
        claim.state, claim.wanted, claim.waits_since = ClaimState.WAITING, size, now
        self._waiting[claim.number] = claim
        return self._go_on()

    def complete(self, claim: Claim) -> None:
        """Note that all of the request has come."""
        claim.state = ClaimState.COMPLETE

    def send(self, claim: Claim) -> None:
        """Note that the request was answered; its memory is held until the answer is sent."""
        claim.state, claim.checked = ClaimState.SENDING, -1

    def release(self, claim: Claim) -> Sequence[Claim]:
        """Release all memory of the claim. Return the claims that may go on now."""
        self._claims.pop(claim, None)
        self._waiting.pop(claim.number, None)
        self.held -= claim.held
        self._promise(claim, 0)
        claim.state, claim.held = ClaimState.IDLE, 0
        # A frame that still has the claim, as of a cancelled task, would else keep the buffers of its connection.
        claim.end, claim.on_granted = _end_nothing, _notify_nobody
        given = self._go_on()
        for other in self._beside:
            given += other._go_on()
        return given

    def overdue(self, now: float) -> Sequence[Claim]:
        """Return the claims whose connections must end (invariant D). Call every `CHECK_S`."""
        self._check += 1
        if not self._waiting and (self.held <= self.least or not any(other._waiting for other in self._beside)):
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

    def _promise(self, claim: Claim, whole: int) -> None:
        self._promised += whole - claim.whole
        self._largest = max(self._largest, whole) if self._claims else 0
        claim.whole = whole

    def _fits(self, claim: Claim, size: int) -> bool:
        """True if invariants B and C hold after the claim is given `size` more bytes."""
        if self.capacity is None or self._promised <= self.least:
            return True
        most = max(self.capacity, next(iter(self._claims)).whole)
        others = sum(max(0, other.held - other.least) for other in self._beside)
        need = self.held + size + self._largest  # an upper bound; the exact need takes longer
        if need + others > most:
            need = self._need(claim, size)
        if need > most:
            return False
        if self.held + size <= self.least:
            return True
        if not claim.held and any(other._waits_before(claim.number) for other in self._beside):
            return False
        return need + others <= most

    def _need(self, claim: Claim, size: int) -> int:
        """Return the most held until this claim and all older ones are handled, if it is given `size` more bytes."""
        need = newer = 0
        for each in reversed(self._claims):
            if each.number <= claim.number:
                need = max(need, each.whole + newer)
            newer += each.held
            if each is claim:
                newer += size
        return need

    def _waits_before(self, number: int) -> bool:
        return bool(self._waiting) and min(self._waiting) < number

    def _give(self, claim: Claim, size: int) -> None:
        self.held += size
        claim.held += size
        claim.state, claim.wanted = ClaimState.RECEIVING, 0

    def _go_on(self) -> list[Claim]:
        """Give memory to waiting claims, the oldest first, as long as it fits."""
        given = []
        while self._waiting:
            claim = self._waiting[min(self._waiting)]
            if not self._fits(claim, claim.wanted):
                break
            del self._waiting[claim.number]
            self._give(claim, claim.wanted)
            given.append(claim)
        return given


def share(memories: Sequence[RequestMemory]) -> None:
    """Let kinds share memory (invariant C). Each capacity is the shared memory, less the least of the others."""
    numbers: Iterator[int] = count(1)
    for memory in memories:
        memory._numbers = numbers
        memory._beside = tuple(other for other in memories if other is not memory)
