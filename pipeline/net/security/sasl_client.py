"""SASL mechanisms, the client's side: PLAIN, SCRAM, OAUTHBEARER (RFC 4616, 5802, 7628). Library: scramp."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import trio
from scramp import ScramClient, ScramException

from pipeline.credentials import Secret
from pipeline.errors import AuthenticationError
from pipeline.model import HostPort
from pipeline.net.dialing import Exchange
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from pipeline.protocol.messages.sasl_handshake import SaslHandshakeRequest

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
MAX_ITERATIONS = 1_000_000
"""Most hashing of a password, about a second, that a server may ask for; Kafka's own tools make 16,384 at most."""
_ITERATIONS = re.compile(rb",i=(\d{1,20})")
READ_REFUSAL = b"\x01"
"""Answer of a client whose token is refused (RFC 7628)."""
MAX_TOKENS = 10
"""Tokens of an exchange; none of the mechanisms has more than three."""

MAX_ANSWER_BYTES = 4096
"""Longest message of a server in SCRAM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslLogin:
    """The mechanism, and what it proves."""

    mechanism: str
    user: str = ""
    password: Secret | None = None
    token: Secret | None = None
    find_token: Callable[[], Awaitable[Secret]] | None = None
    """Finds a token for each login, if it is not given. Raises AuthenticationError."""

    async def complete(self) -> "SaslLogin":
        """Return the login with all that it proves. Raises AuthenticationError."""
        return self if self.find_token is None else replace(self, token=await self.find_token(), find_token=None)

    def begin(self) -> "ClientExchange":
        """Begin an exchange with a server."""
        if self.mechanism == PLAIN:
            return _Single(f"\0{self.user}\0{_revealed(self.password)}".encode())
        if self.mechanism == OAUTHBEARER:
            return _Bearer(f"n,,\x01auth=Bearer {_revealed(self.token)}\x01\x01".encode())
        return _Scram(self.mechanism, self.user, _revealed(self.password))


class ClientExchange:
    """The tokens of a client, one for each answer of the server."""

    def first(self) -> bytes:
        """Return the first token. Raises AuthenticationError."""
        raise NotImplementedError

    def next(self, answer: bytes) -> bytes | None:
        """Return the next token, None if the exchange is over. Raises AuthenticationError if the server is false."""
        raise NotImplementedError


class _Single(ClientExchange):
    def __init__(self, token: bytes) -> None:
        self._token = token

    def first(self) -> bytes:
        return self._token

    def next(self, answer: bytes) -> bytes | None:  # noqa: ARG002
        return None


class _Bearer(_Single):
    """A server that refuses the token sends a JSON object first, and its error when the client has answered that."""

    def next(self, answer: bytes) -> bytes | None:
        return READ_REFUSAL if answer else None


class _Scram(ClientExchange):
    def __init__(self, mechanism: str, user: str, password: str) -> None:
        try:
            self._client = ScramClient([mechanism], user, password)
        except ScramException as error:
            raise AuthenticationError(f"{mechanism}: {error}") from error
        self._has_proven = False

    def first(self) -> bytes:
        return str(self._client.get_client_first()).encode()

    def next(self, answer: bytes) -> bytes | None:
        """Check the server's word: it must know the password, too. Hashing the password takes some ms."""
        if len(answer) > MAX_ANSWER_BYTES:
            raise AuthenticationError(f"the server sends {len(answer)} bytes where some hundred are expected")
        try:
            if self._has_proven:
                self._client.set_server_final(answer.decode())
                return None
            iterations = _ITERATIONS.search(answer)
            if iterations is not None and int(iterations[1]) > MAX_ITERATIONS:
                raise AuthenticationError(f"the server asks for more than {MAX_ITERATIONS} iterations of the password")
            self._client.set_server_first(answer.decode())
            self._has_proven = True
            return str(self._client.get_client_final()).encode()
        except (ScramException, ValueError, KeyError) as error:
            raise AuthenticationError(f"the server does not prove that it knows the password: {error}") from error


def _revealed(secret: Secret | None) -> str:
    return "" if secret is None else secret.reveal()


async def log_in(login: SaslLogin, address: HostPort, exchange: Exchange) -> float | None:
    """Authenticate a connection. Return the time in s for which that holds, None for ever.

    Raises AuthenticationError, and what the exchange raises.
    """
    handshake: Any = await exchange(SaslHandshakeRequest(mechanism=login.mechanism))
    if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise AuthenticationError(f"{address} offers the SASL mechanisms {offered}, not {login.mechanism}")
    if handshake.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationError(f"the listener at {address} has no SASL: compare security.protocol")
    if handshake.error_code:
        raise AuthenticationError(f"{address} refuses SASL: {ErrorCode.of(handshake.error_code).message}")
    tokens = (await login.complete()).begin()
    token: bytes | None = tokens.first()
    for _ in range(MAX_TOKENS):
        assert token is not None
        answer: Any = await exchange(SaslAuthenticateRequest(auth_bytes=token))
        if answer.error_code:
            reason = answer.error_message or ErrorCode.of(answer.error_code).message
            raise AuthenticationError(f"{address} does not accept {login.user or 'the token'}: {reason}")
        token = await trio.to_thread.run_sync(partial(tokens.next, bytes(answer.auth_bytes)))
        if token is None:
            return answer.session_lifetime_ms / 1000 if answer.session_lifetime_ms else None
    raise AuthenticationError(f"{address} does not end the exchange of {login.mechanism}")
