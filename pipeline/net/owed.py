"""Answers that a connection owes: their requests are handled, but outcomes are still awaited. Pure.

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

    `deadline`: the latest time of the answer, in trio's time. `answer` returns the answer as things stand; call it
    once, when all outcomes are over or at the deadline.
    """

    __slots__ = ("_missing", "_outcomes", "answer", "deadline")

    def __init__(self, outcomes: Sequence[Outcome], deadline: float, answer: Callable[[], Answer]) -> None:
        super().__init__()
        self._outcomes = outcomes
        self._missing = len(outcomes)
        self.deadline = deadline
        self.answer = answer
        listener = self._outcome_is_over
        for outcome in outcomes:
            outcome.when_over(listener)
        if not outcomes:
            self.end()

    def _outcome_is_over(self) -> None:
        self._missing -= 1
        if not self._missing:
            self.end()

    def leave(self) -> None:
        """Release the answer: no caller awaits it any more."""
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
    """An owed answer, and its request without the body."""

    request: Request[Message]
    owed: Owed
    arrived: float
    asked: float


class OwedAnswers(deque[Debt]):
    """Answers that a connection owes. The properties describe the first one, which must exist."""

    __slots__ = ()

    @property
    def api_key(self) -> ApiKey:
        """The api key whose requests may be handled meanwhile."""
        return self[0].request.api_key

    @property
    def deadline(self) -> float:
        """The latest time of the first answer."""
        return self[0].owed.deadline

    @property
    def is_over(self) -> bool:
        """True if the first answer can be given."""
        return self[0].owed.is_over

    def settle(self, now: float) -> Iterator[Debt]:
        """Take out the first answers that can be given: over, or past their deadline."""
        while self and (self.is_over or self.deadline <= now):
            yield self.popleft()

    def leave(self) -> None:
        """Release all answers: the client has left."""
        for debt in self:
            debt.owed.leave()
