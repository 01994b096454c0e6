"""Server of connections: accepts them and runs a `Conversation` for each in its own task.

Owns the listening sockets and the connections for as long as `serve` runs; cancelling it closes them all.

The server bounds the connections, in all and by address; the bytes of a request (before they are read) and of all
requests under way (`request_memory`); the answers held before they are sent; the time for which a connection may be
silent. A peer that sends garbage loses only its own connection.

If there are as many connections as may be, those that are not authenticated make room: the oldest of the address that
has most of them. For brokers the connection of others that was silent for longest makes room, too (KIP-402).
"""

import errno
import os
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import trio

from pipeline.diagnostics import get_logger
from pipeline.errors import AuthenticationError, NetworkError, ProtocolError
from pipeline.model import SecurityProtocol
from pipeline.net.answers import Handler, Peer
from pipeline.net.authentication import Authenticate, Authenticator
from pipeline.net.conversation import Conversation, Shared
from pipeline.net.memories import Memories, memories_of
from pipeline.net.network import SOCKETS, ConnectionListener, Network
from pipeline.net.rare_log import RareLog
from pipeline.net.request_memory import CHECK_S
from pipeline.net.request_statistics import RequestStatistics
from pipeline.net.transport import Transport
from pipeline.protocol.api import ApiKey
from pipeline.settings import MAX_INT32

logger = get_logger(__name__)

ACCEPT_RETRY_S = 0.1
ACCEPT_RETRY_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
STRANGER_S = 30.0
"""Time in which a client has to authenticate itself."""
MAX_STRANGERS = 2000
"""Connections that are not authenticated, at a time: each may hold some hundred KB, and needs some milliseconds."""
IDLE_CHECKS = 8
"""Checks of a silent connection until it is closed."""


Secure = Callable[[Transport], Awaitable[tuple[Transport, str]]]
"""Encrypts a new connection. Returns it, and the name of the user of its certificate, or ANONYMOUS. Raises
AuthenticationError, NetworkError; closes what it was given then."""


@dataclass(frozen=True, slots=True)
class ServedListener:
    """A listening address, and how its connections are protected."""

    listener: ConnectionListener
    name: str = SecurityProtocol.PLAINTEXT.value
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    secure: Secure | None = None
    authenticate: Authenticate | None = None
    is_of_brokers: bool = False
    """True for a listener of its own for brokers: its connections are taken even if there are `max_connections`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Bounds of a server. `max_memory_bytes` is the bound of all large requests under way; None for no bound."""

    max_request_bytes: int
    max_connections: int
    max_idle_s: float
    max_memory_bytes: int | None = None
    max_connections_per_ip: int = MAX_INT32
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class ServerStatistics:
    """Plain counts for the metrics."""

    requests: Mapping[ApiKey, RequestStatistics]
    memories: Memories
    open_connections: int = 0
    accepted: int = 0
    refused: int = 0
    refused_strangers: int = 0
    """Connections closed because the client was not authenticated, or not in time."""
    broken: int = 0
    """Connections closed because of a protocol violation, slowness, or an error in a handler."""


class Server:
    """Connections whose requests `handle` answers. Requests of the keys `long_polls` end when their client leaves."""

    def __init__(
        self,
        handle: Handler,
        apis: Mapping[int, ApiKey],
        config: ServerConfig,
        long_polls: Collection[int] = (),
        network: Network = SOCKETS,
    ) -> None:
        self._config = config
        memories = memories_of(config.max_memory_bytes)
        requests = {key: RequestStatistics() for key in apis.values()}
        self.statistics = ServerStatistics(requests, memories)
        self._shared = Shared(
            handle=handle,
            apis=apis,
            long_polls=long_polls,
            max_request_bytes=config.max_request_bytes,
            memories=memories,
            requests=requests,
            hangups=network.hangups(),
        )
        self._strange = RareLog(logger)
        self._conversations: dict[Conversation, Transport] = {}
        self._by_host: Counter[str] = Counter()
        self._strangers: defaultdict[str, dict[Conversation, None]] = defaultdict(dict)
        """Connections of clients that are not authenticated yet, by address, the oldest first."""
        self._stranger_count = 0

    def reconfigure(self, config: ServerConfig) -> None:
        """Apply these bounds to new connections; open ones stay."""
        self._config = config

    async def serve(
        self,
        listeners: Sequence[ServedListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; closes the listeners."""
        async with trio.open_nursery() as others, trio.open_nursery() as connections:
            others.start_soon(self._shared.hangups.run)
            others.start_soon(self._end_idle)
            others.start_soon(self._end_overdue)
            others.start_soon(self._end_strangers)
            for listener in listeners:
                others.start_soon(self._accept, listener, connections)
            task_status.started()
            await trio.sleep_forever()

    async def _accept(self, served: ServedListener, connections: trio.Nursery) -> None:
        with closing(served.listener):
            while True:
                try:
                    transport, address = await served.listener.accept()
                except OSError as error:
                    if error.errno not in ACCEPT_RETRY_ERRORS:  # that client has left; accept the next one
                        continue
                    logger.error("accept_failed", error=os.strerror(error.errno), retry_s=ACCEPT_RETRY_S)
                    await trio.sleep(ACCEPT_RETRY_S)
                    continue
                peer = Peer(address=address, listener=served.name, protocol=served.protocol)
                exceeded = self._exceeded(served, peer.address.host)
                if exceeded is not None:
                    self.statistics.refused += 1
                    transport.close()
                    self._strange.warning(
                        "connection_refused", peer.address.host, peer=str(peer.address), limit=exceeded
                    )
                    continue
                self.statistics.accepted += 1
                self.statistics.open_connections += 1
                self._by_host[peer.address.host] += 1
                connections.start_soon(self._hold, served, transport, peer)

    def _exceeded(self, served: ServedListener, host: str) -> str | None:
        config = self._config
        limit = config.max_connections_per_ip_overrides.get(host, config.max_connections_per_ip)
        if self._by_host[host] >= limit:
            return f"{limit} connections from {host}"
        if self.statistics.open_connections < config.max_connections or self._make_room(served, host):
            return None
        return f"{config.max_connections} connections"

    def _make_room(self, served: ServedListener, host: str) -> bool:
        """End another connection for one on this listener from this address. False if none is to end for it."""
        if self._end_stranger(host):
            return True
        if not served.is_of_brokers:
            return False
        others = [each for each in self._conversations if each.peer.listener != served.name and not each.ended_because]
        if not others:
            return False
        min(others, key=lambda each: (each.is_busy, each.active_at)).end("a broker needs its place")
        return True

    def _end_stranger(self, host: str) -> bool:
        """End the oldest connection of the address with most that are not authenticated, unless `host` has as many."""
        most, strangers = max(self._strangers.items(), key=lambda item: len(item[1]), default=("", {}))
        if len(strangers) <= len(self._strangers.get(host, ())):
            return False
        leaving = next(iter(strangers))
        self._forget_stranger(most, leaving)
        self.statistics.refused_strangers += 1
        leaving.end("not authenticated yet, and others wait for its place")
        return True

    def _forget_stranger(self, host: str, conversation: Conversation) -> None:
        strangers = self._strangers.get(host, {})
        if conversation in strangers:
            del strangers[conversation]
            self._stranger_count -= 1
        if not strangers:
            self._strangers.pop(host, None)

    async def _hold(self, served: ServedListener, transport: Transport, peer: Peer) -> None:
        conversation = None
        try:
            if served.secure is not None:
                transport, peer.principal = await served.secure(transport)
            authenticator = None if served.authenticate is None else served.authenticate(peer)
            conversation = self._begin(transport, peer, authenticator)
            await conversation.run()
            if conversation.ended_because is not None:
                logger.info("connection_ended", peer=str(peer.address), reason=conversation.ended_because)
        except AuthenticationError as error:
            self.statistics.refused_strangers += 1
            told = {"peer": str(peer.address), "listener": peer.listener, "error": str(error)}
            self._strange.warning("client_refused", peer.address.host, **told)
        except (NetworkError, OSError) as error:
            logger.debug("connection_lost", peer=str(peer.address), error=str(error))
        except ProtocolError as error:
            self.statistics.broken += 1
            self._strange.warning("connection_broken", peer.address.host, peer=str(peer.address), error=str(error))
        except Exception:
            self.statistics.broken += 1
            logger.exception("handler_failed", peer=str(peer.address))
        finally:
            if conversation is not None:
                self._conversations.pop(conversation, None)
                self._forget_stranger(peer.address.host, conversation)
            self._forget(peer.address.host)
            transport.close()

    def _begin(self, transport: Transport, peer: Peer, authenticator: Authenticator | None) -> Conversation:
        host = peer.address.host
        conversation = Conversation(self._shared, transport, peer, authenticator)
        if authenticator is not None:
            if self._stranger_count >= MAX_STRANGERS and not self._end_stranger(host):
                raise AuthenticationError(f"{MAX_STRANGERS} connections are not authenticated yet")
            self._strangers[host][conversation] = None
            self._stranger_count += 1
            peer.on_known = partial(self._forget_stranger, host, conversation)
        self._conversations[conversation] = transport
        return conversation

    def _forget(self, host: str) -> None:
        self.statistics.open_connections -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    async def _end_idle(self) -> None:
        """End connections that have been silent for long.

        A process that was paused has heard nobody meanwhile. What its clients have sent is read before the next check.
        """
        max_idle_s = self._config.max_idle_s
        interval_s = max_idle_s / IDLE_CHECKS
        while True:
            due_s = trio.current_time() + interval_s
            await trio.sleep_until(due_s)
            if trio.current_time() > due_s + interval_s:
                continue
            oldest = trio.current_time() - max_idle_s
            for conversation, transport in self._conversations.items():
                if max(conversation.active_at, transport.sent_at) < oldest and not conversation.is_busy:
                    conversation.end(f"silent for {max_idle_s:g} s")

    async def _end_strangers(self) -> None:
        """End connections that have not been authenticated in time: they would hold places of others."""
        while True:
            await trio.sleep(STRANGER_S / IDLE_CHECKS)
            oldest = trio.current_time() - STRANGER_S
            for conversation in self._conversations:
                known = conversation.authenticator is None or conversation.authenticator.is_open
                if conversation.began_at < oldest and not known:
                    self.statistics.refused_strangers += 1
                    conversation.end(f"not authenticated within {STRANGER_S:g} s")

    async def _end_overdue(self) -> None:
        while True:
            await trio.sleep(CHECK_S)
            for claim in self._shared.memories.overdue(trio.current_time()):
                self.statistics.broken += 1
                claim.end("its request or answer went too slowly while others waited for memory")
