"""The memory that requests under way may take together (`queued.max.request.bytes`): who may take how much. Pure.

Only requests that do not fit into the receive buffer (64 KiB) take from here, and they take bit by bit, as their bytes
come. So many requests that are half received could fill the memory and each wait for the others; the rules below see
to it that somebody always goes on.

Invariants
  A. Of requests of one kind the one that began first goes first: none is given memory as long as an older one waits.
  B. What is held never exceeds the capacity, but for a single request that is larger. Each claim says beforehand how
     much it may take in all (`whole`), and memory is given only if afterwards this claim and all older ones could take
     the rest of theirs, one after the other, from what is free and what those before have given back. So requests that
     hold some never wait for each other.
  C. Several kinds of requests may share memory (`share`). Each kind may always hold its `least`; what it holds beyond
     that is taken from the others, by the rule of B: the claim and the older ones of its kind could go on to their end
     even if the other kinds gave nothing back. So no two kinds wait for each other. A request that holds nothing yet
     takes nothing beyond the least of its kind while an older one of another kind waits.
  D. As long as somebody waits, a request that has room and does not use it (fewer than 64 KiB since the check before)
     is ended, and so is an answer that its client does not read (likewise), and a request that waited for 30 s: a
     client gives up about then. So nobody waits for ever. A kind that holds no more than its least is in nobody's way.

A claim goes through these states:
    idle -> receiving (took some) -> waiting (wants more) -> receiving -> complete (all has come) -> sending
    (answered) -> idle (released; from any other state, too). One that is complete may ask for more, and is complete
    again after that.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count

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
    """What the present request of one connection holds. Its owner adds to `moved_bytes` what comes and goes.

    `end`: ends the connection, for the reason given. `on_granted`: tells the owner that the claim waits no longer.
    """

    end: Callable[[str], None] = lambda _reason: None
    on_granted: Callable[[], None] = lambda: None
    state: ClaimState = ClaimState.IDLE
    number: int = 0
    whole: int = 0
    """The most that it may hold."""
    held: int = 0
    wanted: int = 0
    waits_since: float = 0.0
    moved_bytes: int = 0
    checked_bytes: int = 0
    checked: int = -1


@dataclass(slots=True)
class RequestMemory:
    """The claims of all connections to one kind of memory. A capacity of None has no end."""

    capacity: int | None
    least: int = 0
    held: int = 0
    _beside: Sequence["RequestMemory"] = ()
    _claims: dict[Claim, None] = field(default_factory=dict)
    """In the order of their numbers."""
    _promised: int = 0
    """Bytes that all claims may hold together."""
    _largest: int = 0
    """No claim may hold more."""
    _waiting: dict[int, Claim] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _check: int = 0

    @property
    def waiting(self) -> int:
        """Claims that wait."""
        return len(self._waiting)

    def take(self, claim: Claim, size: int, now: float, whole: int = 0) -> Sequence[Claim]:
        """Ask for more, at time `now`. Returns the claims that may go on: others, perhaps, and not always this one.

        `whole`: when a claim asks first, the most that it will hold.
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
        """All of the request has come."""
        claim.state = ClaimState.COMPLETE

    def send(self, claim: Claim) -> None:
        """The request was answered; its memory is held until the answer is sent."""
        claim.state, claim.checked = ClaimState.SENDING, -1

    def release(self, claim: Claim) -> Sequence[Claim]:
        """Release all: the request was handled or is given up. Returns the claims that may go on now."""
        self._claims.pop(claim, None)
        self._waiting.pop(claim.number, None)
        self.held -= claim.held
        self._promise(claim, 0)
        claim.state, claim.held = ClaimState.IDLE, 0
        given = self._go_on()
        for other in self._beside:
            given += other._go_on()
        return given

    def overdue(self, now: float) -> Sequence[Claim]:
        """Return the claims whose connections must be ended (D). Call every `CHECK_S`."""
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
        """True if B and C hold when the claim is given so much more."""
        if self.capacity is None or self._promised <= self.least:
            return True
        most = max(self.capacity, next(iter(self._claims)).whole)
        others = sum(max(0, other.held - other.least) for other in self._beside)
        need = self.held + size + self._largest  # or less, which takes longer to find out
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
        """The most that is held until this claim and all older ones are handled, if it is given so much more."""
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
        """Give to those who wait, the oldest first, as long as there is room."""
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
    """Have these kinds share their memory (C). The capacity of each is what is shared, less the least of the others."""
    numbers: Iterator[int] = count(1)
    for memory in memories:
        memory._numbers = numbers
        memory._beside = tuple(other for other in memories if other is not memory)
