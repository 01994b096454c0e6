"""Authentication of a connection by SASL, for the first time and again (KIP-43, KIP-152, KIP-368).

States: before SaslHandshake only that and ApiVersions are answered; then the tokens of the mechanism; then all
requests, and SaslHandshake again to renew the authentication, by the same user and mechanism, before it ends.

An authentication holds for the time that is left of it when it is proved, as in Kafka: that time is counted by a steady
clock, so that a wall clock that is set neither ends a session nor makes it longer.

A refusal is answered after a pause, and ends the connection: who guesses passwords is slowed down, and the number of
refusals that wait is bounded by address.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import trio

from pipeline.broker.security.sasl.mechanism import Proof, SaslMechanism, SaslRefusedError
from pipeline.diagnostics import get_logger
from pipeline.errors import ProtocolError
from pipeline.model import Clock
from pipeline.net.answers import Handler, HandlerResult, Peer
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import BARE_TOKEN, Request
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from pipeline.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from pipeline.protocol.schema import Message

logger = get_logger(__name__)

MAX_DELAYED_BY_HOST = 100
"""Refusals that wait at a time for clients of one address; further ones are answered by the end of the connection."""
MAX_REQUESTS_BEFORE = 20
"""Requests of a client that is not known: an exchange has five. Others must not wait for what strangers ask."""


@dataclass(slots=True)
class AuthenticationCounts:
    """Plain counts for the metrics, as Kafka names them."""

    successes: Counter[str] = field(default_factory=Counter)
    """By listener."""
    failures: Counter[str] = field(default_factory=Counter)
    renewals: Counter[str] = field(default_factory=Counter)
    expired: Counter[str] = field(default_factory=Counter)
    """Connections that ended because their authentication was not renewed in time."""
    delayed: Counter[str] = field(default_factory=Counter)
    """Refusals that wait now, by address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslPlan:
    """The authentication of one listener. `mechanisms` begin an exchange, by the name of the mechanism."""

    mechanisms: Mapping[str, Callable[[], SaslMechanism]]
    handle: Handler
    clock: Clock
    """The wall clock, by which credentials end."""
    counts: AuthenticationCounts
    steady: Callable[[], float] = trio.current_time
    """A clock in seconds that nobody sets, by which sessions end."""
    max_request_bytes: int = 524_288
    max_session_ms: int = 0
    """Longest time in ms for which an authentication holds; 0: for ever."""
    failure_delay_s: float = 0.1


class _State(Enum):
    STRANGE = auto()
    EXCHANGING = auto()
    KNOWN = auto()
    RENEWING = auto()


class SaslAuthenticator:
    """The authentication of one connection (see `net.authentication`)."""

    def __init__(self, plan: SaslPlan, peer: Peer) -> None:
        self._plan = plan
        self._peer = peer
        self._state = _State.STRANGE
        self._mechanism_name = ""
        self._mechanism: SaslMechanism | None = None
        self._ends_s = math.inf
        """End of the authentication, by the steady clock."""
        self._requests_before = 0
        self.takes_tokens = False
        self.is_refused = False

    @property
    def max_request_bytes(self) -> int:
        """Largest request of a client that is not known yet."""
        return self._plan.max_request_bytes

    @property
    def is_open(self) -> bool:
        """True once the client is known."""
        return self._state in (_State.KNOWN, _State.RENEWING)

    def handle(self, request: Request[Message], peer: Peer) -> HandlerResult | Awaitable[HandlerResult]:
        """Answer requests of the authentication, and hand on the others of a known client. Raises ProtocolError."""
        if not self.is_open:
            self._requests_before += 1
            if self._requests_before > MAX_REQUESTS_BEFORE:
                raise ProtocolError(f"more than {MAX_REQUESTS_BEFORE} requests before the client is authenticated")
        match request.body:
            case SaslHandshakeRequest(mechanism=mechanism):
                return self._begin(mechanism, request.api_version)
            case SaslAuthenticateRequest(auth_bytes=token):
                return self._step(bytes(token), request.api_version)
            case _ if self.is_open:
                self._require_session()
                return self._plan.handle(request, peer)
            case _ if request.api_key is ApiKey.API_VERSIONS and self._state is _State.STRANGE:
                return self._plan.handle(request, peer)
            case _:
                raise ProtocolError(f"{request.api_key.name} before the client is authenticated")

    def _require_session(self) -> None:
        if self._plan.steady() > self._ends_s:
            self._plan.counts.expired[self._peer.listener] += 1
            raise ProtocolError(f"the authentication of {self._peer.principal} has ended, and was not renewed")

    def _begin(self, mechanism: str, version: int) -> HandlerResult | Awaitable[HandlerResult]:
        offered = tuple(self._plan.mechanisms)
        if self._state in (_State.EXCHANGING, _State.RENEWING):
            return self._refuse_handshake(ErrorCode.ILLEGAL_SASL_STATE, offered, "SaslHandshake during an exchange")
        if mechanism not in self._plan.mechanisms:
            reason = f"the client asks for the mechanism {mechanism[:50]!a}, which is not offered"
            return self._refuse_handshake(ErrorCode.UNSUPPORTED_SASL_MECHANISM, offered, reason)
        if self._state is _State.KNOWN and (mechanism != self._mechanism_name or version == 0):
            reason = f"the client changes from {self._mechanism_name} to {mechanism}"
            return self._refuse_handshake(ErrorCode.ILLEGAL_SASL_STATE, offered, reason)
        self._state = _State.RENEWING if self._state is _State.KNOWN else _State.EXCHANGING
        self._mechanism_name = mechanism
        self._mechanism = self._plan.mechanisms[mechanism]()
        self.takes_tokens = version == 0
        return SaslHandshakeResponse(mechanisms=offered)

    def _refuse_handshake(
        self, code: ErrorCode, offered: tuple[str, ...], reason: str
    ) -> HandlerResult | Awaitable[HandlerResult]:
        return self._refused(reason, SaslHandshakeResponse(error_code=code, mechanisms=offered))

    def _step(self, token: bytes, version: int) -> HandlerResult | Awaitable[HandlerResult]:
        if self._mechanism is None:
            reason = "SaslAuthenticate without SaslHandshake before it"
            code = ErrorCode.ILLEGAL_SASL_STATE
            return self._refused(reason, SaslAuthenticateResponse(error_code=code, error_message=code.message))
        lifetime_ms = 0
        try:
            step = self._mechanism.step(token)
            if step.proof is not None:
                lifetime_ms = self._take(step.proof)
        except SaslRefusedError as error:
            answer = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(error))
            return self._refused(f"{self._mechanism_name}: {error.reason}", None if version == BARE_TOKEN else answer)
        return SaslAuthenticateResponse(auth_bytes=step.token, session_lifetime_ms=lifetime_ms)

    def _take(self, proof: Proof) -> int:
        """Take over who the client is, and return for how long, in ms; 0: for ever.

        Raises SaslRefusedError if a renewal names another user.
        """
        peer, counts = self._peer, self._plan.counts
        is_renewal = self._state is _State.RENEWING
        if is_renewal and proof.user != peer.principal:
            raise SaslRefusedError("Cannot change principals during re-authentication")
        lifetimes_ms = [] if proof.until_ms is None else [max(1, proof.until_ms - self._plan.clock())]
        if self._plan.max_session_ms:
            lifetimes_ms.append(self._plan.max_session_ms)
        lifetime_ms = min(lifetimes_ms, default=0)
        self._ends_s = self._plan.steady() + lifetime_ms / 1000 if lifetime_ms else math.inf
        peer.principal = proof.user
        peer.on_known()
        self._state, self._mechanism, self.takes_tokens = _State.KNOWN, None, False
        (counts.renewals if is_renewal else counts.successes)[peer.listener] += 1
        return lifetime_ms

    def _refused(self, reason: str, answer: Message | None) -> HandlerResult | Awaitable[HandlerResult]:
        """Answer after a pause, and end the connection."""
        counts, host = self._plan.counts, self._peer.address.host
        self.is_refused = True
        counts.failures[self._peer.listener] += 1
        logger.warning("authentication_failed", peer=str(self._peer.address), listener=self._peer.listener,
                       reason=reason)  # fmt: skip
        if self._plan.failure_delay_s <= 0:
            return answer
        if counts.delayed[host] >= MAX_DELAYED_BY_HOST:
            return None
        return self._answer_late(answer, host)

    async def _answer_late(self, answer: Message | None, host: str) -> HandlerResult:
        delayed = self._plan.counts.delayed
        delayed[host] += 1
        try:
            await trio.sleep(self._plan.failure_delay_s)
        finally:
            delayed[host] -= 1
            if not delayed[host]:
                del delayed[host]
        return answer
