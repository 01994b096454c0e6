"""Protection of a running HTTP server: TLS, users and the headers of its answers, which follow their files.

Invariant: a file that cannot be used any more leaves the last one in force, and is told in the log.
"""

import os
import ssl
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import trio
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError
from pipeline.net.http.authentication import Authentication, LoginProof, LoginRules
from pipeline.net.http.login_counts import LoginCounts, LoginMethod
from pipeline.net.http.roles import RoleTable, guarded
from pipeline.net.http.security import HttpSecurity
from pipeline.net.http.users import MAX_NAME_LENGTH, HttpUser, HttpUsers, Role, parse_users
from pipeline.net.security.principal_rules import find_user
from pipeline.net.security.tls_context import (
    ReloadingContext,
    TlsIdentity,
    TlsPlan,
    TlsTrust,
    file_state,
    server_context,
)

LOOK_S = 10.0
"""Interval at which the files of certificates and users are looked at."""
MAX_FILE_BYTES = 4 << 20
SECRET_BYTES = 32
KEPT_NAMES = 1000
"""Distinguished names of certificates whose users are kept: rules may take their time."""
REFRESH_S = 3600.0
"""Interval at which published keys are read."""
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
"""Headers of answers that do not have them: an answer that is no page may load nothing, and no other page it."""
TRANSPORT_HEADER: Final = (b"strict-transport-security", b"max-age=31536000")
PRIVATE_HEADER: Final = (b"cache-control", b"no-store")

logger = get_logger(__name__)


class UsersFile:
    """The users of a file, which are read again when it has changed. Raises ConfigurationError the first time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = file_state(path)
        self.users = read_users(path)

    def look(self) -> None:
        """Take over a changed file, if it can be used. Reads files: call it in a thread."""
        state = file_state(self._path)
        if state == self._seen:
            return
        self._seen = state
        try:
            self.users = read_users(self._path)
        except ConfigurationError as error:
            logger.error("http_users_not_reloaded", error=str(error), effect="the last ones stay in force")
        else:
            logger.info("http_users_reloaded", path=str(self._path))


def read_users(path: Path) -> HttpUsers:
    """Return the users of a file. Raises ConfigurationError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigurationError("http.users.file", f"{path} has more than {MAX_FILE_BYTES} bytes")
        return parse_users(content.decode())
    except OSError as error:
        raise ConfigurationError("http.users.file", f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError("http.users.file", f"{path} is not text in UTF-8") from error


class HttpProtection:
    """The protection of the server of one service. Reads files; raises ConfigurationError."""

    def __init__(self, security: HttpSecurity, service: str = "") -> None:
        """`service`: name of the service in its metrics."""
        self._security = security
        self.counts = LoginCounts(service)
        self._users: UsersFile | None = None
        self._tokens: _Tokens | None = None
        self._tls: ReloadingContext | None = None
        self._tls_of_metrics: ReloadingContext | None = None
        if security.users_file is not None:
            self._users = UsersFile(security.users_file)
        if security.jwks_url is not None:
            self._tokens = _Tokens(security, security.jwks_url)
        if security.keystore_location is not None:
            identity = TlsIdentity(
                certificate_path=security.keystore_location,
                key_password=security.key_password,
                setting="http.ssl.keystore.location",
            )
            trust = TlsTrust(path=security.truststore_location, setting="http.ssl.truststore.location")
            plan = TlsPlan(identity=identity, trust=None if security.truststore_location is None else trust)
            make = partial(server_context, plan, _CLIENT_AUTH[security.client_auth])
            self._tls = ReloadingContext(make, [security.keystore_location, security.truststore_location], identity)
            if security.metrics_listen is not None:
                make = partial(server_context, TlsPlan(identity=identity), ssl.CERT_NONE)
                self._tls_of_metrics = ReloadingContext(make, [security.keystore_location], identity)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Context of the next connection, None for connections without TLS."""
        return None if self._tls is None else self._tls.context

    def collect_certificate(self) -> Iterator[Metric]:
        """Collect the end of the certificate, if there is one."""
        if self._tls is not None:
            yield GaugeMetricFamily(
                "pipeline_http_certificate_expiration_timestamp_seconds",
                "Time at which the certificate of the HTTP server expires, in seconds since 1970.",
                value=self._tls.end_s,
            )

    @property
    def tls_of_metrics(self) -> ssl.SSLContext | None:
        """Context of the port of the metrics, which asks no client for a certificate."""
        return None if self._tls_of_metrics is None else self._tls_of_metrics.context

    def note_failed_handshake(self) -> None:
        """Count a client without a certificate that counts, if the server asks for one."""
        if self._security.client_auth != "none":
            self.counts.failed[LoginMethod.CERTIFICATE] += 1

    def guard(self, routes: Sequence[BaseRoute], roles: RoleTable) -> list[BaseRoute]:
        """Have routes check roles, if there are users. Raises UnlistedRouteError."""
        return guarded(routes, roles, self._security.skip_paths) if self._security.asks_login else list(routes)

    def around(self, application: ASGIApp) -> ASGIApp:
        """Return the application as clients may reach it. It is itself without protection."""
        users, tokens = self._users, self._tokens
        if self._security.asks_login:
            rules = LoginRules(
                users=lambda: HttpUsers() if users is None else users.users,
                check_token=lambda token: None if tokens is None else tokens.check(token),
                name_of=lru_cache(KEPT_NAMES)(partial(find_user, self._security.principal_mapping_rules)),
                open_paths=self._security.skip_paths,
                counts=self.counts,
            )
            application = Authentication(application, rules, os.urandom(SECRET_BYTES), _wall_clock)
        return self.with_headers(application)

    def with_headers(self, application: ASGIApp) -> ASGIApp:
        """Return the application with the headers of a protected server. It is itself without protection."""
        if not self._security.asks_login and self._tls is None:
            return application
        added = dict(HEADERS)
        if self._tls is not None:
            added |= [TRANSPORT_HEADER]
        if self._security.asks_login:
            added |= [PRIVATE_HEADER]
        return _SafeAnswers(application, added)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take over changed files and keys, until cancelled. Reports started once keys were asked for."""
        async with trio.open_nursery() as nursery:
            if self._tokens is not None:
                await nursery.start(self._tokens.keys.run)
            task_status.started()
            await self._follow_files()

    async def _follow_files(self) -> None:
        followed = [each.look for each in (self._users, self._tls, self._tls_of_metrics) if each is not None]
        while followed:
            await trio.sleep(LOOK_S)
            for look in followed:
                await trio.to_thread.run_sync(look)


class _Tokens:
    """Tokens (JWT) of an authority, as users of this server."""

    def __init__(self, security: HttpSecurity, url: str) -> None:
        from pipeline.net.security.published_keys import (
            PublishedKeys,  # cryptography, which other servers need not load
        )
        from pipeline.net.security.web_tokens import TokenRules

        trust = TlsTrust(path=security.token_truststore_location, setting="http.oauthbearer.ssl.truststore.location")
        self.keys = PublishedKeys(url, REFRESH_S, trust)
        self._rules = TokenRules(
            audiences=security.expected_audience,
            issuer=security.expected_issuer,
            subject_claim=security.subject_claim,
            scope_claim=security.scope_claim,
        )

    def check(self, token: str) -> LoginProof | None:
        """Return the user of a token with the highest role among its scopes, None for a token that lets nobody in."""
        from pipeline.net.security.web_tokens import TokenRefusedError

        known = self.keys.keys
        try:
            proof = self.keys.verify(token, self._rules, _wall_clock())
        except TokenRefusedError as error:
            logger.info("http_token_refused", reason=str(error))
            return None
        roles = [role for role in Role if str(role) in proof.scopes]
        is_name = proof.subject.isprintable() and len(proof.subject) <= MAX_NAME_LENGTH
        if not roles or not is_name:
            logger.info("http_token_refused", reason="its scopes are none of read, write, admin, or its user no name")
            return None
        user = HttpUser(name=proof.subject, role=max(roles))
        return LoginProof(user, until_ms=proof.until_ms, holds=lambda: self.keys.keys is known)


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000


class _SafeAnswers:
    """ASGI middleware: adds headers to answers that lack them."""

    def __init__(self, application: ASGIApp, headers: dict[bytes, bytes]) -> None:
        self._application = application
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                names = {name.lower() for name, _ in given}
                missing = [(name, value) for name, value in self._headers.items() if name not in names]
                message = {**message, "headers": given + missing}
            await send(message)

        await self._application(scope, receive, send_safely)
