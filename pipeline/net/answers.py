"""The answers of a handler: at once, large, or with a pause for a throttled client. Those that are owed: `owed`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

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


HandlerResult = Answer | Throttled | LargeAnswer | PendingAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The other end of a connection."""

    address: HostPort


Handler = Callable[[Request[Message], Peer], HandlerResult | Awaitable[HandlerResult]]
"""Answers a request at once, or returns a coroutine that will. Raises ProtocolError to have the connection closed."""
