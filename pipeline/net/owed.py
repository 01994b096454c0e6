"""Answers that a connection owes: what their requests asked for is done, but others must follow first. Pure.

Invariant: answers are settled in the order of their requests.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import NamedTuple

from pipeline.net.answers import Answer
from pipeline.net.signals import Outcome
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import Request
from pipeline.protocol.schema import Message

MAX_OWED = 64


class Owed(Outcome, Awaitable[Answer]):
    """An answer that waits until all `outcomes` are over; later requests need not wait. Awaiting it gives the answer.

    `deadline`: when the answer is given in any case, in trio's time. `answer`: call once, when all is over or at the
    deadline; returns the answer as things stand.
    """

    __slots__ = ("_missing", "_outcomes", "answer", "deadline")

    def __init__(self, outcomes: Sequence[Outcome], deadline: float, answer: Callable[[], Answer]) -> None:
        super().__init__()
        self._outcomes = outcomes
        self._missing = len(outcomes)
        self.deadline = deadline
        self.answer = answer
        listener = self._one_is_over
        for outcome in outcomes:
            outcome.when_over(listener)
        if not outcomes:
            self.end()

    def _one_is_over(self) -> None:
        self._missing -= 1
        if not self._missing:
            self.end()

    def leave(self) -> None:
        """Release the answer: no caller will ask for it."""
        super().leave()
        for outcome in self._outcomes:
            outcome.leave()

    def __await__(self) -> Generator[None, None, Answer]:
        return self._wait().__await__()

    async def _wait(self) -> Answer:
        try:
            await self.wait_over(self.deadline)
        except BaseException:
            self.leave()
            raise
        return self.answer()


class Debt(NamedTuple):
    """An answer that is owed, and the request it belongs to, without its body."""

    request: Request[Message]
    owed: Owed
    arrived: float
    asked: float


class OwedAnswers(deque[Debt]):
    """The answers that one connection owes. All but `settle` and `leave` ask for the first, which must be there."""

    __slots__ = ()

    @property
    def api_key(self) -> ApiKey:
        """The key whose requests may be handled meanwhile."""
        return self[0].request.api_key

    @property
    def deadline(self) -> float:
        """The time at which the first answer is given in any case."""
        return self[0].owed.deadline

    @property
    def is_over(self) -> bool:
        """True if the first answer can be given."""
        return self[0].owed.is_over

    def settle(self, now: float) -> Iterator[Debt]:
        """Take out the first debts that are over, or whose deadline has passed."""
        while self and (self.is_over or self.deadline <= now):
            yield self.popleft()

    def leave(self) -> None:
        """Release all answers: the client has gone."""
        for debt in self:
            debt.owed.leave()
