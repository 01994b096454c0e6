"""Connections of an HTTP/1.1 server: each is a task that reads requests and has the application answer them in order.

Bounds: `MAX_CONNECTIONS` connections, of which one that has asked for nothing for a long time makes room for the next;
the size of heads (`http_requests`); and times, each of them a deadline of the connection, which ends when it has
passed; and the large answers that are held until their clients have read them, of which the oldest makes room for the
next. The application runs in the task of the connection, without a bound of time: it bounds its own work.
"""

import math
import os
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import trio
from starlette.types import ASGIApp

from pipeline.diagnostics import get_logger
from pipeline.errors import AuthenticationError, NetworkError
from pipeline.model import ANONYMOUS, HostPort
from pipeline.net.http.exchange import HttpExchange, error_answer, http_scope
from pipeline.net.http.requests import BadRequestError, HttpRequest, RequestParser
from pipeline.net.server import ACCEPT_RETRY_ERRORS, ACCEPT_RETRY_S
from pipeline.net.signals import Signal
from pipeline.net.transport import SocketTransport

if TYPE_CHECKING:
    from pipeline.net.security.tls import Handshakes, TlsTransport

SHUTDOWN_TIMEOUT_S = 1.0
"""Time for clients to read the answers that are being sent when the service stops."""
MAX_SEND_S = 30.0
"""Time for a client to read a piece of an answer, which is in memory until then."""
MAX_RECEIVE_S = 30.0
"""Time for a client to send the next part of a body."""
MAX_HEAD_S = 10.0
"""Time for a client to send the head of a request, from its first byte on."""
MAX_IDLE_S = 60.0
"""Time without a request after which a connection ends."""
LINGER_S = 2.0
"""Time for a client to read an answer that came before the end of its request."""
MAX_CONNECTIONS = 500
"""Connections of a service. A connection that sent half a request takes some 100 KB for its time."""
CHECK_S = 0.5
"""Time between two looks for deadlines that have passed."""
SENT_BYTES = 4 << 20
"""Size of the pieces in which a large answer is sent."""
MAX_SENDING_BYTES = 64 << 20
"""Bound of all large answers that are being sent, but for a larger one alone. The application holds them, too."""
UNSHIELDED_BYTES = 16 * 1024
"""Answers up to this size fit into the buffer of a socket, so that sending one does not wait if the client reads."""
RECEIVED_BYTES = 4 * 1024
"""Bytes received at once: so many can be requests that wait for their turn, and take ten times their bytes or more."""
ACCEPTED_AT_ONCE = 64
FAIR_REQUESTS = 2
"""Requests of a connection that are answered without a wait, before other connections have their turn."""
FAIR_PARTS = 100
"""Parts of a body that are received before other connections have their turn: a chunk can be one byte."""

logger = get_logger(__name__)


class HttpConnections:
    """Connections of a server at `address`. A connection beyond `MAX_CONNECTIONS` is served, and another is cut off."""

    def __init__(
        self,
        application: ASGIApp,
        address: HostPort,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        handshake_failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`tls`: returns the context of TLS for the next connection, None for a connection in clear text."""
        self._application = application
        self._address = address
        self._tls = tls
        self._handshake_failed = handshake_failed
        self._handshakes: Handshakes | None = None
        self._connections: OrderedDict[_Connection, None] = OrderedDict()
        """The one whose last request is the longest ago comes first."""
        self._sending: OrderedDict[_Connection, int] = OrderedDict()
        """Sizes of the large answers that are being sent."""
        self._ended = Signal()

    async def accept(self, listener: socket.socket) -> None:
        """Accept and serve connections until cancelled. Many are accepted at once: one in each turn would be slow."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    await trio.lowlevel.wait_readable(listener)
                    for _ in range(ACCEPTED_AT_ONCE):
                        connected, address = listener.accept()
                        nursery.start_soon(self._serve, connected, HostPort(*address[:2]))
                except BlockingIOError:
                    continue
                except OSError as error:
                    if error.errno in ACCEPT_RETRY_ERRORS:
                        logger.error("http_accept_failed", error=os.strerror(error.errno), retry_s=ACCEPT_RETRY_S)
                        await trio.sleep(ACCEPT_RETRY_S)

    async def _serve(self, connected: socket.socket, client: HostPort) -> None:
        """Serve a connection until it ends."""
        if len(self._connections) >= MAX_CONNECTIONS:
            self._make_room()
        try:
            connection = _Connection(SocketTransport(connected), client)
        except OSError:  # the client has left
            connected.close()
            return
        self._connections[connection] = None
        try:
            with connection.scope:
                context = self._tls()
                if context is None or await self._encrypt(connection, context):
                    await self._converse(connection)
        finally:
            connection.close()
            self._connections.pop(connection, None)
            self._ended.notify()

    async def _encrypt(self, connection: "_Connection", context: ssl.SSLContext) -> bool:
        """Have a connection speak TLS. Return False if its client cannot."""
        from pipeline.net.security.tls import Handshakes  # a server in clear text would take the memory, too

        if self._handshakes is None:
            self._handshakes = Handshakes()
        try:
            await connection.encrypt(self._handshakes, context)
        except (AuthenticationError, NetworkError) as error:
            if isinstance(error, AuthenticationError):
                self._handshake_failed()
            logger.debug("http_handshake_failed", address=connection.client.host, error=str(error))
            return False
        return True

    def _make_room(self) -> None:
        """Cut off the first connection that waits for its client, and none whose request the application works on.

        Only one half is looked at: otherwise, while the application works for all others, the newest would be cut off.
        """
        half = list(islice(self._connections, (len(self._connections) + 1) // 2))
        chosen = next((each for each in half if each.deadline != math.inf), half[0])
        del self._connections[chosen]
        chosen.cut_off()

    async def run(self) -> None:
        """End connections whose deadlines have passed. When cancelled, cut off those that do not end in time."""
        try:
            while True:
                await trio.sleep(CHECK_S)
                now = trio.current_time()
                for connection in [each for each in self._connections if each.deadline <= now]:
                    connection.cut_off()
        finally:
            with trio.move_on_after(SHUTDOWN_TIMEOUT_S, shield=True):
                while self._connections:
                    await self._ended.wait()
            for connection in list(self._connections):
                connection.cut_off()

    async def _converse(self, connection: "_Connection") -> None:
        with suppress(NetworkError):
            try:
                while True:
                    request = await connection.next_request()
                    if connection in self._connections:
                        self._connections.move_to_end(connection)
                    if not await self._answer(connection, request):
                        return
            except BadRequestError as error:
                await connection.write(error_answer(error.status))
                await connection.linger()

    async def _answer(self, connection: "_Connection", request: HttpRequest) -> bool:
        """Have a request answered. Return True if the connection may go on."""
        exchange = HttpExchange(request, connection.receive_more, partial(self._write, connection))
        scope = http_scope(request, connection.client, self._address, connection.scheme, connection.certificate_name)
        try:
            await self._application(scope, exchange.receive, exchange.send)
        except NetworkError:
            raise
        except Exception:
            logger.exception("http_request_failed", method=request.method, path=scope["path"])
        if not exchange.is_over:
            if not exchange.has_begun:
                await connection.write(error_answer(500))
            return False
        if not exchange.keep_alive and not request.is_complete:
            await connection.linger()
        return exchange.keep_alive

    async def _write(self, connection: "_Connection", data: bytes) -> None:
        if len(data) <= UNSHIELDED_BYTES:
            await connection.write(data)
            return
        while self._sending and sum(self._sending.values()) + len(data) > MAX_SENDING_BYTES:
            oldest, _ = self._sending.popitem(last=False)
            oldest.cut_off()
        self._sending[connection] = len(data)
        try:
            await connection.write(data)
        finally:
            self._sending.pop(connection, None)


class _Connection:
    """A connection and its parser.

    `deadline` is the time (trio's) at which it ends unless the client does something; infinite if it has not to.
    """

    def __init__(self, transport: SocketTransport, client: HostPort) -> None:
        self.client = client
        self.deadline = trio.current_time() + MAX_IDLE_S
        self.scope = trio.CancelScope()
        self.scheme = "http"
        self.certificate_name: str | None = None
        """Distinguished name of the client's certificate."""
        self._transport: SocketTransport | TlsTransport = transport
        self._parser = RequestParser()
        self._refusal: BadRequestError | None = None
        self._unwaited_requests = 0

    async def encrypt(self, handshakes: "Handshakes", context: ssl.SSLContext) -> None:
        """Speak TLS from now on. Raises AuthenticationError, NetworkError; the connection is closed then."""
        assert isinstance(self._transport, SocketTransport)
        self._transport, name = await handshakes.accept(self._transport, context)
        self.certificate_name = None if name == ANONYMOUS else name
        self.scheme = "https"
        self.deadline = trio.current_time() + MAX_IDLE_S

    async def next_request(self) -> HttpRequest:
        """Wait for the head of a request. Raises NetworkError when the client has left, BadRequestError."""
        self._unwaited_requests += 1
        if self._unwaited_requests > FAIR_REQUESTS:
            await self._give_way()
        parser = self._parser
        if not parser.requests:
            now = trio.current_time()
            self.deadline = now + (MAX_IDLE_S if parser.is_between_requests else MAX_HEAD_S)
            while not parser.requests:
                was_between_requests = parser.is_between_requests
                await self._receive()
                if was_between_requests:
                    self.deadline = trio.current_time() + MAX_HEAD_S
        self.deadline = math.inf
        return parser.requests.popleft()

    async def receive_more(self) -> None:
        """Wait for a further part of the request. Raises NetworkError, BadRequestError."""
        self.deadline = trio.current_time() + MAX_RECEIVE_S
        await self._receive()
        self.deadline = math.inf

    async def _receive(self) -> None:
        if self._refusal is not None:  # raised after the requests before it were answered
            raise self._refusal
        while (count := self._transport.receive_now(_RECEIVED)) is None:
            self._unwaited_requests = 0
            await self._transport.wait_readable()
        if count == 0:
            raise NetworkError("the client has left")
        try:
            self._parser.feed(_RECEIVED[:count])
        except BadRequestError as error:
            self._refusal = error
        if self._transport.had_its_share or self._parser.part_count > FAIR_PARTS:
            await self._give_way()

    async def _give_way(self) -> None:
        self._unwaited_requests = self._parser.part_count = 0
        await self._transport.give_way()

    async def write(self, data: bytes) -> None:
        """Send. A stop of the service does not interrupt it, but cuts the connection off later. Raises NetworkError."""
        if len(data) <= UNSHIELDED_BYTES:
            self.deadline = trio.current_time() + MAX_SEND_S
            await self._transport.send((data,))
        else:
            with trio.CancelScope(shield=True):
                view = memoryview(data)
                for first in range(0, len(data), SENT_BYTES):
                    self.deadline = trio.current_time() + MAX_SEND_S
                    await self._transport.send((view[first : first + SENT_BYTES],))
        self.deadline = math.inf

    async def linger(self) -> None:
        """Take what the client still sends: if it were left, the client could lose the answer. Raises NetworkError."""
        self._transport.end_sending()
        self.deadline = trio.current_time() + LINGER_S
        while await self._transport.receive_into(_RECEIVED):
            pass

    def cut_off(self) -> None:
        """End it at once, whatever it waits for."""
        self.scope.cancel()
        self._transport.close()

    def close(self) -> None:
        """Let go of socket and parser."""
        self._transport.close()
        self._parser.close()


_RECEIVED = memoryview(bytearray(RECEIVED_BYTES))
"""Takes what a connection receives until it is parsed, at once. One for all: a server has one thread."""
