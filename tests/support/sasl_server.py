"""A server with SASL and nothing else, clocks that tests set, and the user alice, who has a password."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from pipeline.broker.security.authentication import AuthenticationCounts, SaslAuthenticator, SaslPlan
from pipeline.broker.security.sasl.mechanism import Proof, SaslMechanism
from pipeline.broker.security.sasl.oauthbearer import OAuthBearerMechanism
from pipeline.broker.security.sasl.plain import PlainMechanism
from pipeline.broker.security.sasl.scram import ScramExchange
from pipeline.coordination.scram_znodes import ScramCredential, ScramHash, ScramShape, salted_password
from pipeline.credentials import Secret
from pipeline.errors import PipelineError
from pipeline.model import HostPort, SecurityProtocol
from pipeline.net.answers import Peer
from pipeline.net.authentication import Authenticator
from pipeline.net.connection_pool import ConnectionPool
from pipeline.net.network import SOCKETS
from pipeline.net.server import ServedListener, Server, ServerConfig
from pipeline.protocol.api import API
from pipeline.protocol.messages.api_versions import ApiVersionsRequest
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataResponse
from pipeline.protocol.schema import Message

PASSWORD = "pencil"
NOW_MS = 1_700_000_000_000
ITERATIONS = 4096
SALT = b"salt of 15 byte"


def _credential(kind: ScramHash) -> ScramCredential:
    return ScramCredential.of_salted_password(kind, salted_password(kind, PASSWORD, SALT, ITERATIONS), SALT, ITERATIONS)


def _find(user: str, kind: ScramHash) -> ScramCredential | None:
    return _credential(kind) if user == "alice" else None


def scram(
    kind: ScramHash = ScramHash.SHA_256, nonce: str = "server-nonce", shapes: Sequence[ScramShape] = ()
) -> ScramExchange:
    """An exchange in which alice has the password."""
    return ScramExchange(kind, _find, b"secret of the cluster", nonce, shapes)


@dataclass
class Sasl:
    """A server with SASL, whose handler answers Metadata with the name of the user."""

    address: HostPort
    counts: AuthenticationCounts
    server: Server
    now_ms: list[int] = field(default_factory=lambda: [NOW_MS])
    """The wall clock, beside the steady one."""
    later_s: list[float] = field(default_factory=lambda: [0.0])
    """Time by which the steady clock is ahead of the real one."""


@asynccontextmanager
async def served(**plan: Any) -> AsyncIterator[Sasl]:
    """Serve PLAIN, SCRAM-SHA-256 and OAUTHBEARER (tokens `USER.MS`), with further settings of SaslPlan."""
    counts, now_ms, later_s, begun = AuthenticationCounts(), [NOW_MS], [0.0], trio.current_time()

    def verify(token: str) -> Proof:
        user, until_ms = token.split(".")
        if int(until_ms) <= now_ms[0]:
            raise PipelineError("it has ended")
        return Proof(user, int(until_ms))

    def handle(request: Any, peer: Peer) -> Message:
        if isinstance(request.body, ApiVersionsRequest):
            from pipeline.broker.requests.handlers import api_versions

            return api_versions.describe(API.values())
        return MetadataResponse(cluster_id=peer.principal)

    mechanisms: dict[str, Callable[[], SaslMechanism]] = {
        "PLAIN": lambda: PlainMechanism({"alice": Secret(PASSWORD), "bob": Secret("bobs")}),
        "SCRAM-SHA-256": lambda: scram(nonce=f"nonce{random.random()}"),
        "OAUTHBEARER": lambda: OAuthBearerMechanism(verify),
    }
    made = SaslPlan(
        mechanisms=mechanisms,
        handle=handle,
        clock=lambda: now_ms[0] + int((trio.current_time() - begun) * 1000),
        counts=counts,
        steady=lambda: trio.current_time() + later_s[0],
        **{"failure_delay_s": 0.0, **plan},
    )

    def authenticate(peer: Peer) -> Authenticator:
        return SaslAuthenticator(made, peer)

    server = Server(handle, API, ServerConfig(max_request_bytes=1 << 20, max_connections=1000, max_idle_s=600))
    (listener,) = await SOCKETS.listen(HostPort("127.0.0.1", 0))
    protocol = SecurityProtocol.SASL_PLAINTEXT
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [ServedListener(listener, "CLIENT", protocol, None, authenticate)])
        yield Sasl(HostPort("127.0.0.1", listener.port), counts, server, now_ms, later_s)
        nursery.cancel_scope.cancel()


async def who(pool: ConnectionPool, sasl: Sasl, lane: str = "") -> str:
    """Return the user that the server takes the client for."""
    answer: MetadataResponse = await pool.request(sasl.address, MetadataRequest(), timeout_s=60, lane=lane)
    return answer.cluster_id or ""
