"""Answers of a handler: at once, large, or with a pause for a throttled client. `owed` has answers given later."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pipeline.model import ANONYMOUS, HostPort, SecurityProtocol
from pipeline.protocol.connection import Request
from pipeline.protocol.schema import Message

Answer = Message | None
"""A response message, or None when the request gets no answer (Produce with acks=0)."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """An answer for a client over its quota: sent at once, then the connection is not read for `mute_s` (KIP-219).

    Requests that have arrived wait. `rest_s` is asked every `look_again_s`: the pause may have become shorter.
    """

    answer: Answer
    mute_s: float
    rest_s: Callable[[], float] | None = None
    look_again_s: float = 1.0


@dataclass(frozen=True, slots=True)
class LargeAnswer:
    """An answer that a thread encodes, since that takes long.

    `copied_bytes`: about how many bytes encoding copies of data that the server holds anyway. They are claimed like the
    memory of large requests, until the answer is sent.
    """

    answer: Message
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """An answer that may be very much larger than its request, and is built once there is memory for it.

    `held_bytes`: about the memory that it takes, built and encoded. Much memory is claimed before.
    """

    build: Callable[[], Awaitable[Message]]
    held_bytes: int


HandlerResult = Answer | Throttled | LargeAnswer | PendingAnswer


def _do_nothing() -> None:
    """Stand for somebody who does not ask when a client is known."""


@dataclass(slots=True, kw_only=True)
class Peer:
    """The other end of a connection, as long as the connection lives. Authentication changes `principal`."""

    address: HostPort
    listener: str = SecurityProtocol.PLAINTEXT.value
    """Name of the listener that accepted the connection."""
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    principal: str = ANONYMOUS
    """Name of the user."""
    on_known: Callable[[], None] = _do_nothing
    """Called by an authentication that has changed `principal`."""


Handler = Callable[[Request[Message], Peer], HandlerResult | Awaitable[HandlerResult]]
"""Returns the answer of a request, or a coroutine that will. Raises ProtocolError to have the connection closed."""
