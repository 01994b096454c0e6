"""Authentication of requests to an HTTP server by password, token (RFC 7617, RFC 6750) or certificate.

Invariants:
- A request reaches the application only with a user, or if its target is, byte for byte, a path that needs none.
- A password is checked in a thread, two at a time; what was right is remembered by a keyed hash of the whole header, as
  long as the user's entry is the same.
- An answer, its time, and the log say nothing about which names exist. No password or token is ever logged.
- A certificate counts for a request that shows nothing else: a wrong password is refused.
- A page of another origin changes nothing with the password that a browser keeps.
"""

import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.diagnostics import get_logger
from pipeline.model import Clock
from pipeline.net.http.attempts import LoginAttempts, TooManyAttemptsError
from pipeline.net.http.exchange import certificate_name_of
from pipeline.net.http.login_counts import LoginCounts, LoginMethod
from pipeline.net.http.roles import USER, refused_answer
from pipeline.net.http.users import MAX_PASSWORD_BYTES, NOBODY, HttpUser, HttpUsers, PasswordEntry

CHECKS_AT_ONCE = 2
"""Threads that check passwords; each takes a processor and 16 MB."""
MAX_REMEMBERED = 1000
"""Right passwords that are not checked again."""
REALM = "pipeline"
CHALLENGES = (f'Basic realm="{REALM}", charset="UTF-8"', f'Bearer realm="{REALM}"')
"""Each is a header of its own: browsers read no two in one."""
DENIED = frozenset({401, 429})
"""Statuses of answers to those whom nobody knows. Both bear the challenges."""
FORBIDDEN = 403
MAX_LOGGED_BYTES = 250
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoginProof:
    """A user who has shown what is right, and for how long that counts."""

    user: HttpUser
    entry: PasswordEntry | None = None
    """Entry of the password, which counts while the file has it."""
    until_ms: int | None = None
    holds: Callable[[], bool] = lambda: True
    """Returns False once what was shown must be checked again."""


CheckToken = Callable[[str], LoginProof | None]
"""Returns whom a token (JWT) lets in, None if nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRules:
    """Rules by which users log in to a server.

    `users` returns those of the file as it is now. `name_of`: returns the name that the distinguished name of a
    certificate stands for, None if it stands for nobody.
    """

    users: Callable[[], HttpUsers]
    check_token: CheckToken = lambda _token: None
    name_of: Callable[[str], str | None] = lambda _name: None
    open_paths: Collection[str] = ()
    counts: LoginCounts = field(default_factory=lambda: LoginCounts(""))


class Authentication:
    """ASGI middleware: finds the user of each request."""

    def __init__(self, application: ASGIApp, rules: LoginRules, secret: bytes, clock: Clock) -> None:
        """`secret`: random bytes of this process, the key of the hashes of what was right."""
        self._application = application
        self._users = rules.users
        self._check_token = rules.check_token
        self._name_of = rules.name_of
        self._counts = rules.counts
        self._secret = secret
        self._clock = clock
        self._open_paths = frozenset(path.encode() for path in rules.open_paths)
        self._attempts = LoginAttempts()
        self._threads = trio.CapacityLimiter(CHECKS_AT_ONCE)
        self._remembered: OrderedDict[bytes, LoginProof] = OrderedDict()
        """By the hash of the header that was right."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, 403 or 429, or hand on the request with its user."""
        if scope["raw_path"] in self._open_paths:
            await self._application({**scope, USER: None}, receive, send)
            return
        host = scope["client"][0]
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        try:
            user = await self._user(given, host) if given else self._user_of_certificate(scope)
        except TooManyAttemptsError as error:
            self._counts.refused[_method(given)] += 1
            await _challenge(429, str(error), {"retry-after": "1"})(scope, receive, send)
            return
        if user is None:
            reason = "a user's password or token is needed" if not given else "the password or token is not right"
            await _challenge(401, reason)(scope, receive, send)
            return
        if scope["method"] not in _SAFE and _is_foreign(scope):
            refused = refused_answer(403, "the request comes from a web page of another origin")
            await refused(scope, receive, _logged(scope, user, send))
            return
        await self._application({**scope, USER: user}, receive, _logged(scope, user, send))

    def _user_of_certificate(self, scope: Scope) -> HttpUser | None:
        """Return the user of a connection's certificate, for a request that shows nothing else."""
        certificate = certificate_name_of(scope)
        if certificate is None:
            self._counts.refused[LoginMethod.NONE] += 1
            return None
        name = self._name_of(certificate)
        user = None if name is None else self._users().certificates.get(name)
        if user is None:
            self._counts.failed[LoginMethod.CERTIFICATE] += 1
            shown = (name or certificate)[:MAX_LOGGED_BYTES]
            logger.warning(
                "http_certificate_refused", address=scope["client"][0], name=shown, is_mapped=name is not None
            )
        return user

    async def _user(self, given: Sequence[bytes], host: str) -> HttpUser | None:
        if len(given) > 1:
            self._counts.failed[LoginMethod.OTHER] += 1
            return None
        header = given[0]
        scheme, _, shown = header.partition(b" ")
        if scheme.lower() == b"bearer" and (user := self._users().of_token(shown.strip())) is not None:
            return user
        digest = hashlib.blake2b(header, key=self._secret).digest()
        if (user := self._remembered_user(digest)) is not None:
            return user
        async with self._attempts.turn(host):
            if (user := self._remembered_user(digest)) is not None:
                return user
            admission = await self._check(scheme.lower(), shown.strip())
            if admission is not None:
                self._remembered[digest] = admission
                if len(self._remembered) > MAX_REMEMBERED:
                    self._remembered.popitem(last=False)
                return admission.user
            self._counts.failed[LoginMethod.of_scheme(scheme)] += 1
            logger.warning("http_login_refused", address=host)
            await self._attempts.note_failure(host)
            return None

    def _remembered_user(self, digest: bytes) -> HttpUser | None:
        found = self._remembered.get(digest)
        if found is None:
            return None
        entry, until_ms = found.entry, found.until_ms
        is_changed = entry is not None and self._users().passwords.get(entry.user.name) != entry
        if is_changed or not found.holds() or (until_ms is not None and self._clock() >= until_ms):
            del self._remembered[digest]
            return None
        self._remembered.move_to_end(digest)
        return found.user

    async def _check(self, scheme: bytes, shown: bytes) -> LoginProof | None:
        if scheme == b"basic":
            return await self._check_password(shown)
        if scheme == b"bearer":
            return self._check_token(shown.decode("ascii", "replace"))
        return None

    async def _check_password(self, shown: bytes) -> LoginProof | None:
        try:
            name, separator, password = base64.b64decode(shown, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return None
        if not separator or len(password) > MAX_PASSWORD_BYTES:
            return None
        entry = self._users().passwords.get(name.decode(errors="replace"), NOBODY)
        is_right = await trio.to_thread.run_sync(partial(entry.has, password), limiter=self._threads)
        return LoginProof(entry.user, entry) if is_right and entry is not NOBODY else None


def _method(given: Sequence[bytes]) -> LoginMethod:
    return LoginMethod.of_scheme(given[0].partition(b" ")[0]) if len(given) == 1 else LoginMethod.OTHER


def _logged(scope: Scope, user: HttpUser, send: Send) -> Send:
    """Return `send`, which logs who asked for what, if that may change something or is refused."""

    async def send_and_log(message: Message) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            if scope["method"] not in _SAFE or status == FORBIDDEN:
                query = scope["query_string"]
                target = scope["raw_path"] + (b"?" + query if query else b"")
                logger.info(
                    "http_request",
                    user=user.name,
                    address=scope["client"][0],
                    method=scope["method"],
                    target=target[:MAX_LOGGED_BYTES].decode("ascii", "backslashreplace"),
                    status=status,
                    allowed=status != FORBIDDEN,
                )
        await send(message)

    return send_and_log


def _challenge(status: int, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    answer = refused_answer(status, reason, headers)
    for challenge in CHALLENGES:
        answer.headers.append("www-authenticate", challenge)
    return answer


def _is_foreign(scope: Scope) -> bool:
    """True if a browser says that the request comes from a page of another origin."""
    headers = dict(scope["headers"])
    origin = headers.get(b"origin")
    own = f"{scope['scheme']}://".encode() + headers.get(b"host", b"")
    return origin is not None and origin.lower() != own.lower()
