"""Shape of all SASL mechanisms: tokens come in, tokens go out, until the user is known. Pure."""

from typing import NamedTuple, Protocol

from pipeline.errors import PipelineError


class SaslRefusedError(PipelineError):
    """The client is not who it says, or does not speak the mechanism. The message tells it no more than that.

    `reason`: for the broker's log, by default the message.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class Proof(NamedTuple):
    """The user that a client has proven to be, and the time in ms until which that holds; None for ever."""

    user: str
    until_ms: int | None = None


class SaslStep(NamedTuple):
    """A token for the client, and the proof with the last one."""

    token: bytes
    proof: Proof | None = None


class SaslMechanism(Protocol):
    """The exchange with one client."""

    def step(self, token: bytes) -> SaslStep:
        """Take a token of the client. Raises SaslRefusedError."""


MAX_USER_LETTERS = 1000
"""Longest name of a user: more letters than any meaningful one has."""


def checked_user(user: str) -> str:
    """Return the name of a user. Raises SaslRefusedError for one that nobody can have."""
    if not user or len(user) > MAX_USER_LETTERS:
        raise SaslRefusedError("the user has no name, or too long a one")
    return user
