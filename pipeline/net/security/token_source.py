"""Tokens for OAUTHBEARER: one that is given, one in a file, or one of a server of OpenID Connect (RFC 6749, 4.4)."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from pipeline.credentials import Secret
from pipeline.errors import AuthenticationError, ConfigurationError
from pipeline.net.http.documents import READ_S, document_path, fetch_document
from pipeline.net.security.tls_context import TlsTrust

USED_SHARE = 0.8
"""Share of its life for which a token is used for new connections; then another one is asked for."""


@dataclass(slots=True)
class TokenSource:
    """Source of the tokens of one client. Those of a server are kept for as long as it says; a file is read each time.

    `url`: file:/PATH, or the server's endpoint for tokens, which gets `client_id` and `secret`. `trust`: authorities of
    the server's certificate, None for those of the system.
    """

    url: str
    client_id: str = ""
    secret: Secret | None = None
    scope: str | None = None
    trust: TlsTrust | None = None
    clock: Callable[[], float] = trio.current_time
    _kept: Secret | None = None
    _kept_until: float = 0.0
    _lock: trio.Lock = field(default_factory=trio.Lock)

    async def find(self) -> Secret:
        """Return a token. Raises AuthenticationError."""
        async with self._lock:
            if self._kept is not None and self.clock() < self._kept_until:
                return self._kept
            try:
                with trio.fail_after(READ_S):
                    return await self._read()
            except (OSError, ValueError, ConfigurationError, trio.TooSlowError) as error:
                reason = str(error) or f"no answer within {READ_S:g} s"
                raise AuthenticationError(f"no token from {self.url}: {reason}") from error

    async def _read(self) -> Secret:
        if document_path(self.url) is not None:
            return Secret(_word((await fetch_document(self.url)).decode()))
        form = {"grant_type": "client_credentials"} | ({} if self.scope is None else {"scope": self.scope})
        password = "" if self.secret is None else self.secret.reveal()
        asked_at = self.clock()
        credentials = self.client_id, password
        answer = _answer(await fetch_document(self.url, form=form, credentials=credentials, trust=self.trust))
        token = Secret(_word(str(answer.get("access_token", ""))))
        lifetime_s = answer.get("expires_in")
        if isinstance(lifetime_s, int | float) and lifetime_s > 0:
            self._kept, self._kept_until = token, asked_at + USED_SHARE * lifetime_s
        return token


def _answer(document: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(document)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")  # noqa: TRY004  a fault of the server
    return answer


def _word(text: str) -> str:
    """Return a token. Raises ValueError, which does not show it."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("there is no access_token, or it is not a single word")
    return token
