"""A network in memory: hosts, connections between them, and what breaks both.

Bytes arrive in order, after a delay, in pieces of any size. A cut direction holds them back, as TCP would, until it is
healed; so a one-way cut lets requests through and no answers, or the other way round. A connection that is broken is
broken at once for one end, while what that end sent still arrives: a request that is sent again on another connection
may come first. A process that is killed closes its connections; a host that loses power tells nobody.
"""

import errno
import itertools
import os
import random
from collections import deque
from collections.abc import Callable, Sequence

import trio

from pipeline.errors import NetworkError
from pipeline.model import FileRegion, HostPort
from pipeline.net.network import ConnectionListener, HangupWatch
from pipeline.net.signals import Signal
from pipeline.net.transport import Piece, Transport
from pipeline.testing.simulation.schedule import Channel, Schedule

CONNECT_TIMEOUT_S = 20.0
SEND_BUFFER_BYTES = 64 * 1024
FAST_S = (0.0002, 0.002)
SLOW_S = (0.01, 0.3)
SPLIT = 0.05
"""The part of what is sent that arrives in two pieces."""

Link = tuple[str, str]
"""From one host to another."""


class SimulatedNetwork:
    """All hosts and the links between them. Cuts and delays of one `share` are independent of those of the others."""

    def __init__(self, schedule: Schedule, rng: random.Random, slow: float) -> None:
        self.schedule = schedule
        self.rng = rng
        self._slow = slow
        self._hosts: dict[str, Host] = {}
        self._cut: dict[Link, None] = {}
        self._late_s: dict[Link, float] = {}
        self._channels: dict[Link, list[Channel]] = {}
        self._shares = [self]
        self.numbers = itertools.count(1)

    def share(self) -> "SimulatedNetwork":
        """Return a network of the same hosts and links, for another part of the run to cut and heal."""
        other = SimulatedNetwork(self.schedule, self.rng, self._slow)
        other._hosts, other._channels, other._shares = self._hosts, self._channels, self._shares
        other.numbers = self.numbers
        self._shares.append(other)
        return other

    def host(self, name: str) -> "Host":
        """The host of this name; made when first asked for."""
        if name not in self._hosts:
            self._hosts[name] = Host(self, name)
        return self._hosts[name]

    def find(self, name: str) -> "Host | None":
        """The host, if there is one."""
        return self._hosts.get(name)

    def channel(self, source: str, target: str) -> Channel:
        """A new one over this link."""
        link = source, target
        channel = Channel(self.schedule, lambda: self.delay_s() + self._late(link))
        if self._is_cut(link):
            channel.cut()
        self._channels.setdefault(link, []).append(channel)
        return channel

    def delay_s(self) -> float:
        """Draw the seconds that a message takes."""
        return self.rng.uniform(*(SLOW_S if self.rng.random() < self._slow else FAST_S))

    def cut(self, source: str, target: str) -> None:
        """Let nothing through from one host to another."""
        self._cut[source, target] = None
        for channel in self._channels.get((source, target), ()):
            channel.cut()

    def delay(self, source: str, target: str, late_s: float) -> None:
        """Have everything take so much longer from one host to another."""
        self._late_s[source, target] = late_s

    def heal(self) -> None:
        """Let everything through."""
        self._late_s.clear()
        cut, self._cut = list(self._cut), {}
        for link in cut:
            if not self._is_cut(link):
                for channel in list(self._channels.get(link, ())):
                    channel.heal()

    def _is_cut(self, link: Link) -> bool:
        return any(link in share._cut for share in self._shares)

    def _late(self, link: Link) -> float:
        return sum(share._late_s.get(link, 0.0) for share in self._shares)


class Host:
    """The network as one host sees it: a `Network`."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self.has_power = True
        self.listeners: dict[int, SimulatedListener] = {}
        self.connections: dict[int, SimulatedTransport] = {}

    async def listen(self, address: HostPort) -> Sequence[ConnectionListener]:
        """Raises OSError when the port is taken."""
        await trio.lowlevel.checkpoint()
        if address.port in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = self.listeners[address.port] = SimulatedListener(self, address.port)
        return [listener]

    async def connect(self, address: HostPort) -> Transport:
        """Raises NetworkError."""
        ours, theirs = self._pair(address.host)
        try:
            ours.outgoing.send(lambda: self._asked(address, ours, theirs))
            with trio.move_on_after(CONNECT_TIMEOUT_S):
                await ours.opened.wait()
            if not ours.is_open:
                raise NetworkError(f"cannot connect to {address}: {ours.failure or 'timed out'}")
        except BaseException:
            ours.close()
            raise
        return ours

    def hangups(self) -> HangupWatch:
        """Make the watch for clients that leave a server."""
        return SimulatedHangups(self)

    def _pair(self, other: str) -> "tuple[SimulatedTransport, SimulatedTransport]":
        network = self.network
        up, down = network.channel(self.name, other), network.channel(other, self.name)
        ours = SimulatedTransport(self, up)
        theirs = SimulatedTransport(network.host(other), down)
        ours.peer, theirs.peer = theirs, ours
        return ours, theirs

    def _asked(self, address: HostPort, ours: "SimulatedTransport", theirs: "SimulatedTransport") -> None:
        """The other host is asked for a connection."""
        host = theirs.host
        if not host.has_power:
            return
        listener = host.listeners.get(address.port)
        if listener is None:
            theirs.outgoing.send(lambda: ours.fail("connection refused"))
            return
        theirs.open()
        listener.arrived(theirs, HostPort(self.name, 40_000 + ours.descriptor))
        theirs.outgoing.send(ours.open)

    def duplicate_connection(self, address: HostPort) -> None:
        """Have a server accept a connection on which nobody will ever speak, as of a packet that came twice."""
        ours, theirs = self._pair(address.host)
        ours.outgoing.send(lambda: self._asked(address, ours, theirs))

    def end_process(self, *, tells_peers: bool) -> None:
        """The process ends: its listeners are gone, and its connections; with the power, nobody hears of it."""
        self.has_power = tells_peers
        for listener in list(self.listeners.values()):
            listener.close()
        for connection in list(self.connections.values()):
            connection.fail("the process has ended")
            if tells_peers:
                connection.close()
            elif connection.peer is not None:
                late_s = self.network.rng.uniform(0.5, 10)
                self.network.schedule.after(late_s, connection.peer.reset)
        self.connections.clear()


class SimulatedListener:
    """A listening port."""

    def __init__(self, host: Host, port: int) -> None:
        self._host = host
        self._waiting: deque[tuple[SimulatedTransport, HostPort]] = deque()
        self._arrived = Signal()
        self.port = port

    def arrived(self, transport: "SimulatedTransport", address: HostPort) -> None:
        """Take a new connection."""
        self._waiting.append((transport, address))
        self._arrived.notify()

    async def accept(self) -> tuple[Transport, HostPort]:
        """The next connection."""
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            await self._arrived.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        """Take no more."""
        if self._host.listeners.get(self.port) is self:
            del self._host.listeners[self.port]
        while self._waiting:
            self._waiting.popleft()[0].close()


class SimulatedHangups:
    """Tells of peers that leave."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def watch(self, descriptor: int, on_gone: Callable[[], None]) -> None:
        """Call when the peer has ended its side."""
        connection = self._host.connections.get(descriptor)
        if connection is not None:
            connection.on_gone = on_gone
            if connection.has_ended:
                on_gone()

    def forget(self, descriptor: int) -> None:
        """Call no more."""
        connection = self._host.connections.get(descriptor)
        if connection is not None:
            connection.on_gone = None

    async def run(self) -> None:
        """Nothing to do."""
        await trio.sleep_forever()


class SimulatedTransport:
    """Transport at one end of a connection."""

    had_its_share = False
    sent_at = float("-inf")

    def __init__(self, host: Host, outgoing: Channel) -> None:
        self.host = host
        self.outgoing = outgoing
        self.descriptor = next(host.network.numbers)
        self.peer: SimulatedTransport | None = None
        self.opened = trio.Event()
        self.is_open = False
        self.failure: str | None = None
        self.on_gone: Callable[[], None] | None = None
        self.has_ended = False
        """Whether the peer sends no more."""
        self._is_closed = False
        self._inbox = bytearray()
        self._readers = trio.lowlevel.ParkingLot()
        self._senders = trio.lowlevel.ParkingLot()
        self._unread_bytes = 0
        """Of what was sent, on the way or not yet read by the peer."""

    def open(self) -> None:
        """The connection stands."""
        if self.failure is None:
            self.is_open = True
            self.host.connections[self.descriptor] = self
            self.opened.set()

    async def receive_into(self, buffer: memoryview, due: int = 1) -> int:
        """Fill the front of `buffer`; 0 when the peer has ended its side. Raises NetworkError."""
        del due  # only sockets wait for many bytes
        while (received := self.receive_now(buffer)) is None:
            await self.wait_readable()
        return received

    def receive_now(self, buffer: memoryview) -> int | None:
        """Receive as `receive_into` does, but return None if nothing is there."""
        if self.failure is not None:
            raise NetworkError(f"connection lost: {self.failure}")
        if self._inbox:
            size = min(len(self._inbox), len(buffer))
            buffer[:size] = self._inbox[:size]
            del self._inbox[:size]
            if self.peer is not None:
                self.peer.was_read(size)
            return size
        return 0 if self.has_ended else None

    async def wait_readable(self) -> None:
        """Wait until there is something to receive. Raises NetworkError."""
        if self._is_readable():
            await trio.lowlevel.checkpoint()
        while not self._is_readable():
            await self._readers.park()

    def _is_readable(self) -> bool:
        return bool(self._inbox) or self.has_ended or self.failure is not None

    async def give_way(self) -> None:
        """Let others have their turn."""
        await trio.lowlevel.checkpoint()

    async def send(self, pieces: Sequence[Piece]) -> None:
        """Send all pieces in order. Raises NetworkError."""
        data = b"".join(map(_bytes_of, pieces))
        while self._unread_bytes > SEND_BUFFER_BYTES and self.failure is None:
            await self._senders.park()
        if self.failure is not None:
            raise NetworkError(f"connection lost: {self.failure}")
        rng = self.host.network.rng
        cut = rng.randint(1, len(data)) if rng.random() < SPLIT else len(data)
        for part in (data[:cut], data[cut:]):
            if part:
                self._unread_bytes += len(part)
                self._send_part(part)

    def _send_part(self, part: bytes) -> None:
        peer = self.peer
        if peer is not None:
            self.outgoing.send(lambda: peer.arrived(part))

    def arrived(self, data: bytes) -> None:
        """The peer has sent this."""
        if self.failure is None:
            self._inbox += data
            if self._readers:
                self._readers.unpark_all()
        elif self.peer is not None and self.host.has_power:
            self.outgoing.send(self.peer.reset)

    def was_read(self, size: int) -> None:
        """The peer has taken so much."""
        self._unread_bytes -= size
        if self._senders:
            self._senders.unpark_all()

    def ended(self) -> None:
        """The peer has ended its side."""
        self.has_ended = True
        self._readers.unpark_all()
        if self.on_gone is not None:
            self.on_gone()

    def reset(self) -> None:
        """The peer does not know this connection."""
        self.fail("connection reset by peer")
        if self.on_gone is not None:
            self.on_gone()

    def fail(self, failure: str) -> None:
        """Break it at this end, without a word to the other."""
        if self.failure is None:
            self.failure = failure
            self.is_open = False
            self.opened.set()
            self._readers.unpark_all()
            self._senders.unpark_all()

    def close(self) -> None:
        """Close at once. Closing twice does nothing."""
        self.fail("closed")
        self.host.connections.pop(self.descriptor, None)
        if self.peer is not None and self.host.has_power and not self._is_closed:
            self.outgoing.send(self.peer.reset if self._inbox else self.peer.ended)
        self._is_closed = True

    def break_off(self) -> None:
        """Break it here; the peer hears of it late, after all that was sent."""
        self.reset()
        peer = self.peer
        if peer is not None:
            self.outgoing.send(peer.ended)


def _bytes_of(piece: Piece) -> bytes | bytearray | memoryview:
    return os.pread(piece.file.fileno(), piece.size, piece.position) if isinstance(piece, FileRegion) else piece
