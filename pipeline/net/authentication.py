"""Step between the connection of a client and the handler of its requests, until the client is known."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from pipeline.net.answers import HandlerResult, Peer
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import Request
from pipeline.protocol.schema import Message

OPEN_TO_STRANGERS: Mapping[int, ApiKey] = {
    key.value: key for key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
}
"""The api keys that are decoded before a client has been authenticated."""


class Authenticator(Protocol):
    """The authentication of one connection. Its user passes every request through `handle`."""

    @property
    def max_request_bytes(self) -> int:
        """Largest request of a client that is not known yet."""

    @property
    def is_open(self) -> bool:
        """True once the client is known."""

    @property
    def takes_tokens(self) -> bool:
        """True if the next request is a bare token (SaslHandshake of version 0)."""

    @property
    def is_refused(self) -> bool:
        """True if the connection ends after the answer that `handle` gave last."""

    def handle(self, request: Request[Message], peer: Peer) -> HandlerResult | Awaitable[HandlerResult]:
        """Answer requests of the authentication, and hand on all others. Raises ProtocolError for those of a stranger.

        Changes `peer.principal` when the client is known, and calls `peer.on_known`.
        """


Authenticate = Callable[[Peer], Authenticator]
"""Begins the authentication of a new connection."""
