"""The answers of a handler: at once, owed until others are done, large, or with a pause for a throttled client."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple

import trio

from pipeline.model import HostPort
from pipeline.protocol.connection import Request
from pipeline.protocol.schema import Message

Answer = Message | None
"""A response message, or None when the request gets no answer (Produce with acks=0)."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """An answer for a client that is over its quota: sent at once, then nothing of its connection is read for `mute_s`
    seconds (KIP-219), and what it has sent already waits. Each `look_again_s` the rest of the silence is asked for: it
    may have become shorter.
    """

    answer: Answer
    mute_s: float
    rest_s: Callable[[], float] | None = None
    look_again_s: float = 1.0


@dataclass(frozen=True, slots=True)
class LargeAnswer:
    """An answer that takes long to encode, which a thread does.

    `copied_bytes`: about how many bytes encoding copies that are in memory once, like the notes of others. They are
    claimed as the memory of large requests is, until the answer is sent.
    """

    answer: Message
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """An answer that may be very much larger than its request, and is built once there is memory for it.

    `held_bytes`: about what it takes, built and encoded. They are claimed before, if they are much.
    """

    build: Callable[[], Awaitable[Message]]
    held_bytes: int


class Owed(ABC, Awaitable[Answer]):
    """An answer that waits for others: what the request asked for is done, and what comes behind it need not wait.
    Whoever awaits it waits as for any other.
    """

    __slots__ = ("deadline",)

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        """Time by which the answer is given in any case, in trio's time."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """True if the answer can be given."""

    @abstractmethod
    def when_over(self, tell: Callable[[], None]) -> None:
        """Have `tell` called once the answer can be given."""

    @abstractmethod
    def answer(self) -> Answer:
        """Return the answer as things stand. Call once, when `is_over` is true or the deadline has passed."""

    @abstractmethod
    def give_up(self) -> None:
        """Release the answer: nobody will ask for it."""

    def __await__(self) -> Generator[None, None, Answer]:
        return self._wait().__await__()

    async def _wait(self) -> Answer:
        over = trio.Event()
        self.when_over(over.set)
        try:
            with trio.move_on_at(self.deadline):
                if not self.is_over:
                    await over.wait()
        except BaseException:
            self.give_up()
            raise
        return self.answer()


class Debt(NamedTuple):
    """An answer that is owed, and the request it belongs to, without its body."""

    request: Request[Message]
    owed: Owed
    arrived: float
    asked: float


Outcome = Answer | Throttled | LargeAnswer | PendingAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is at the other end of a connection."""

    address: HostPort


Handler = Callable[[Request[Message], Peer], Outcome | Awaitable[Outcome]]
"""Answers a request at once, or returns a coroutine that will. Raises ProtocolError to have the connection closed."""
