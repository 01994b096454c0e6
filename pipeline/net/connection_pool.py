"""Client connections to brokers, opened when first needed and shared: many requests are under way on each.

Owns the connections and their reading tasks for as long as the pool's block runs. A server answers the requests of one
connection in order, so a caller with long polls gives them their own `lane`: each lane of an address is a connection.

Invariants:
- Every request ends by its deadline: with the response, NetworkError, ProtocolError or DeadlineExceededError.
- Versions are negotiated once per connection: the highest that both ends know (KIP-35, KIP-511).
- A connection whose authentication is about to end is authenticated again before its next request (KIP-368).
- A request that failed may have been carried out. A connection on which a deadline passed, a request was cut off or the
  answer was garbage is closed, and all requests under way on it fail. The next request opens a new one.
"""

import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import trio

from pipeline.errors import DeadlineExceededError, NetworkError, PipelineError, ProtocolError
from pipeline.model import HostPort
from pipeline.net.dialing import PLAIN_DIALER, Authenticate, Dialer
from pipeline.net.nurseries import lasting_nursery, unwrapped_errors
from pipeline.net.transport import Transport
from pipeline.protocol.api import API
from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from pipeline.protocol.messages.produce import ProduceRequest
from pipeline.protocol.schema import Message
from pipeline.protocol.spare_buffers import SpareBuffers
from pipeline.version import VERSION

SOFTWARE_NAME = "pipeline"
SOFTWARE_VERSION = VERSION

RENEWED_AFTER = 0.9
"""Part of the time for which an authentication holds after which it is renewed. Kafka's clients take 0.85 to 0.95."""

VersionRange = tuple[int, int]
"""First and last version, inclusive."""


@dataclass(slots=True)
class _Reply:
    arrived: trio.Event = field(default_factory=trio.Event)
    response: Message | None = None
    error: PipelineError | None = None

    def answer(self, response: Message) -> None:
        self.response = response
        self.arrived.set()


class _Connection:
    """An open connection: a machine, a socket, and the requests that wait for answers, in order."""

    def __init__(self, address: HostPort, transport: Transport, client_id: str, spare: SpareBuffers) -> None:
        self._address = address
        self._transport = transport
        self._machine = ClientConnection(client_id, spare)
        self._waiting: deque[_Reply] = deque()
        self._sending = trio.StrictFIFOLock()
        self._failure: PipelineError | None = None
        self._is_abandoned = False
        self._retirement: NetworkError | None = None
        self._versions: Mapping[int, VersionRange] = {}
        self._renew_at = math.inf
        self.features: Mapping[str, VersionRange] = {}

    @property
    def is_open(self) -> bool:
        return self._failure is None

    @property
    def is_waited_for(self) -> bool:
        """True if a request has no answer yet."""
        return bool(self._waiting)

    async def negotiate(self) -> None:
        newest = API[ApiVersionsRequest.API_KEY].max_version
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        response = await self.exchange(request, newest)
        if isinstance(response, ApiVersionsResponse) and response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            known = [key.max_version for key in response.api_keys if key.api_key == ApiVersionsRequest.API_KEY]
            response = await self.exchange(request, min(newest, *known) if known else 0)
        if not isinstance(response, ApiVersionsResponse):
            raise ProtocolError(f"{self._address} answered ApiVersions with something else")
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(response.error_code)
        self._versions = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        self.features = {key.name: (key.min_version, key.max_version) for key in response.supported_features}

    @property
    def must_renew(self) -> bool:
        """True if the authentication ends soon."""
        return trio.current_time() >= self._renew_at

    async def authenticate(self, authenticate: Authenticate) -> None:
        """Authenticate, for the first time or again. Raises what `authenticate` raises."""
        lifetime_s = await authenticate(self._address, self._exchange_newest)
        self._renew_at = math.inf if lifetime_s is None else trio.current_time() + RENEWED_AFTER * lifetime_s

    async def _exchange_newest(self, message: Message) -> Message:
        answer = await self.exchange(message, self.version_for(message))
        assert answer is not None
        return answer

    def version_for(self, message: Message) -> int:
        """Return the highest version that both ends know. Raises KafkaError if there is none."""
        first, last = message.VERSIONS
        served_first, served_last = self._versions.get(message.API_KEY, (0, -1))
        version = min(last, served_last)
        if version < max(first, served_first):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self._address} serves versions {served_first} to {served_last} of {type(message).__name__}, "
                f"this client knows {first} to {last}",
            )
        return version

    async def exchange(self, message: Message, version: int) -> Message | None:
        """Send a request and return its answer; None for a request without answer."""
        expects_response = not (isinstance(message, ProduceRequest) and message.acks == 0)
        reply = _Reply()
        async with self._sending:
            if self._failure is not None:
                raise _again(self._failure)
            try:
                _, pieces = self._machine.encode_request(message, version, expect_response=expects_response)
            except ProtocolError as error:  # nothing was sent; another server could not take it either
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
            if expects_response:
                self._waiting.append(reply)
            try:
                await self._transport.send(pieces)
            except NetworkError as error:
                self.fail(error)
                raise
            except BaseException:  # half a request may be sent, and no other can follow it
                self.fail(NetworkError(f"a request to {self._address} was cut off"))
                raise
        if not expects_response:
            return None
        await reply.arrived.wait()
        if reply.error is not None:
            raise _again(reply.error)
        return reply.response

    async def read(self, on_lost: Callable[[bool], None]) -> None:
        """Hand out answers until the connection ends, then tell `on_lost` whether it ended without a request under way.

        The pool ends it, too, if an answer is late.
        """
        try:
            while True:
                buffer = self._machine.get_buffer()
                received = await self._transport.receive_into(buffer, self._machine.due)
                if received == 0:
                    raise NetworkError(f"{self._address} closed the connection")
                if self._failure is not None:  # closed while these bytes gave way to other tasks
                    raise NetworkError(str(self._failure))
                self._machine.bytes_received(received)
                while (answer := self._machine.next_response()) is not None:
                    self._waiting.popleft().answer(answer[1])  # no variable keeps the answer, which may be large
                if self._retirement is not None and not self.is_waited_for:
                    raise self._retirement
        except (NetworkError, ProtocolError) as error:
            was_idle = self.is_open and not self.is_waited_for
            self.fail(error)
            if not self._is_abandoned:
                on_lost(was_idle)
        except BaseException:
            self.fail(NetworkError("the connection pool is closed"))
            raise

    def abandon(self, lane: str) -> None:
        """Close the connection of a lane whose client is done. That is no loss, and not reported as one."""
        self._is_abandoned = True
        self.fail(NetworkError(f"the client of the lane {lane!r} to {self._address} is closed"))

    def retire(self, reason: NetworkError) -> None:
        """Close the connection once all requests under way are answered. Further requests go elsewhere."""
        self._retirement = reason
        if not self.is_waited_for:
            self.fail(reason)

    def fail(self, error: PipelineError) -> None:
        """Close the connection, and fail all requests under way."""
        if self._failure is None:
            self._failure = error
            self._transport.close()
            while self._waiting:
                reply = self._waiting.popleft()
                reply.error = error
                reply.arrived.set()


def _again(error: PipelineError) -> PipelineError:
    """Copy the exception for each waiting task: one object raised in several tasks would mix up their tracebacks."""
    fresh = type(error)(*error.args)
    fresh.__cause__ = error
    return fresh


class LostConnection(NamedTuple):
    """An open connection that has ended. `was_idle` if no request was under way: servers close such ones."""

    address: HostPort
    lane: str
    was_idle: bool


class ConnectionPool:
    """A pool, made by `open_connection_pool`."""

    def __init__(self, client_id: str, nursery: trio.Nursery, dialer: Dialer) -> None:
        self._client_id = client_id
        self._spare = SpareBuffers()
        self._dialer = dialer
        self._nursery = nursery
        self._connections: dict[tuple[HostPort, str], _Connection] = {}
        self._opening: dict[tuple[HostPort, str], trio.Lock] = {}
        self._round_trips_s: dict[HostPort, float] = {}
        self._is_closed = False
        self.on_lost: Callable[[LostConnection], None] = lambda _: None

    async def request(self, address: HostPort, message: Message, *, timeout_s: float, lane: str = "") -> Any:
        """Send a request and return its response (None for Produce with acks=0), connecting first if necessary.

        Raises NetworkError, DeadlineExceededError, ProtocolError; KafkaError if the two ends have no version in common,
        or the request holds a value that cannot be encoded.
        """
        connection: _Connection | None = None
        with trio.move_on_after(timeout_s):
            connection = await self._connection(address, lane)
            return await connection.exchange(message, connection.version_for(message))
        late = DeadlineExceededError(f"{type(message).__name__} to {address} got no answer within {timeout_s:.3g} s")
        if connection is not None:  # answers come in order: those behind the late one are late, too
            connection.fail(NetworkError(str(late)))
        raise late

    async def features(self, address: HostPort, *, timeout_s: float) -> Mapping[str, VersionRange]:
        """Return the features that the server names beside its api versions (KIP-584). Raises like `request`."""
        with trio.move_on_after(timeout_s):
            return (await self._connection(address, "")).features
        raise DeadlineExceededError(f"{address} could not be reached within {timeout_s:.3g} s")

    def round_trip_s(self, address: HostPort) -> float | None:
        """Return the least time in which the server answered on a new connection; None before the first one."""
        return self._round_trips_s.get(address)

    def is_asked(self, address: HostPort, lanes: str) -> bool:
        """Return True if a request to a server is under way in a lane whose name begins so."""
        return any(
            known.is_open and known.is_waited_for
            for (its_address, lane), known in self._connections.items()
            if its_address == address and lane.startswith(lanes)
        )

    def close_lane(self, lane: str) -> None:
        """Close the connections of a lane: its requests under way fail, and their servers need not finish them."""
        for key in [key for key in self._connections if key[1] == lane]:
            self._connections.pop(key).abandon(lane)
        for key in [key for key in self._opening if key[1] == lane]:
            del self._opening[key]

    def drop(self, address: HostPort, reason: str, *, is_idle_only: bool) -> None:
        """Close the connections to a server, whose requests under way fail; with `is_idle_only` they are answered
        first.
        """
        for key, known in list(self._connections.items()):
            if key[0] == address:
                del self._connections[key]
                if is_idle_only:
                    known.retire(NetworkError(reason))
                else:
                    known.fail(NetworkError(reason))

    def keep_only(self, addresses: Collection[HostPort]) -> None:
        """Close the idle connections to all other servers, and forget what is known of these. That is no loss."""
        for key, known in list(self._connections.items()):
            if key[0] not in addresses and not known.is_waited_for:
                self._connections.pop(key).abandon(key[1])
        for key, opening in list(self._opening.items()):
            if key[0] not in addresses and key not in self._connections and not opening.locked():
                del self._opening[key]
        for address in self._round_trips_s.keys() - addresses:
            del self._round_trips_s[address]

    def close(self) -> None:
        """Open no more connections. The open ones end with the pool's block."""
        self._is_closed = True

    async def _connection(self, address: HostPort, lane: str) -> _Connection:
        self._require_open()
        key = (address, lane)
        known = self._connections.get(key)
        if known is not None and known.is_open and not known.must_renew:
            return known
        async with self._opening.setdefault(key, trio.Lock()):
            known = self._connections.get(key)
            if known is not None and known.is_open:
                if known.must_renew:
                    await self._authenticate(known)
                return known
            transport = await self._dialer.connect(address)
            try:
                self._require_open()
                opened = _Connection(address, transport, self._client_id, self._spare)
            except BaseException:
                transport.close()
                raise
            self._nursery.start_soon(
                opened.read, lambda was_idle: self.on_lost(LostConnection(address, lane, was_idle))
            )
            begun_at = trio.current_time()
            try:
                await opened.negotiate()
                took_s = trio.current_time() - begun_at
                self._round_trips_s[address] = min(took_s, self._round_trips_s.get(address, took_s))
                await self._authenticate(opened)
            except BaseException as error:
                opened.fail(error if isinstance(error, PipelineError) else NetworkError(f"{address}: not negotiated"))
                raise
            self._connections[key] = opened
            return opened

    async def _authenticate(self, connection: _Connection) -> None:
        """Authenticate, if the servers want that. A connection that fails is closed: it is of no use."""
        if self._dialer.authenticate is None:
            return
        try:
            await connection.authenticate(self._dialer.authenticate)
        except BaseException as error:
            reason = error if isinstance(error, PipelineError) else NetworkError("the authentication was cut off")
            connection.fail(reason)
            raise

    def _require_open(self) -> None:
        if self._is_closed:
            raise PipelineError("the connection pool is closed: the block of its cluster has ended")


@asynccontextmanager
async def open_connection_pool(client_id: str, dialer: Dialer = PLAIN_DIALER) -> AsyncGenerator[ConnectionPool, None]:
    """Open a pool whose connections live as long as the block, also while it unwinds after a cancellation."""
    with unwrapped_errors():
        async with lasting_nursery() as nursery:
            pool = ConnectionPool(client_id, nursery, dialer)
            try:
                yield pool
            finally:
                pool.close()
