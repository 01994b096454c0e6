"""Connected socket as the rest of the package uses it: receive into a buffer, send pieces, some of which are files.

Owns the socket. The operations try first and wait only if the kernel says so, so a busy connection does not go through
the scheduler; to stay fair, a receiver gives way after `FAIR_SHARE_BYTES`. A thread waits for the disk: large file
regions are always checked for the page cache, small ones in every 16th call and behind a region that was not cached, so
that cached regions, by far the most, cost next to nothing more.
"""

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import trio

from pipeline.errors import NetworkError
from pipeline.model import FileRegion, HostPort
from pipeline.net.page_cache import CHUNK_BYTES, SMALL_BYTES, is_cached, read_cached, read_into_cache

Piece = bytes | bytearray | memoryview | FileRegion

FAIR_SHARE_BYTES = 256 * 1024
AWAITED_BYTES = 512 * 1024
"""Most bytes of a large frame that a receiver waits for at a time. A wait for each piece that a peer sends takes more
time than receiving it."""
COPIED_BYTES = 4096
"""Size up to which regions are copied: a copy takes less time than the two system calls that it saves."""
MAX_COPIED_BYTES = 64 * 1024
"""Bound of copies before they are sent: an answer may have 10,000 of them, and a client that does not read it."""
LOOK_EVERY = 16
"""Calls of `send` between two checks of small regions."""
MAX_BUFFERS_PER_CALL = 512
PIECES_AT_ONCE = 500
"""Pieces of an answer that are sent before others have their turn, even if the peer reads all at once."""


class Transport(Protocol):
    """A connection. Every wait, and every use after it broke or was closed, raises NetworkError."""

    @property
    def descriptor(self) -> int:
        """A number that no other open connection has."""

    @property
    def had_its_share(self) -> bool:
        """True if a receiver should `give_way` now."""

    @property
    def sent_at(self) -> float:
        """Time at which a wait of `send` last ended, in trio's time; -inf if none has."""

    async def receive_into(self, buffer: memoryview, due: int = 1) -> int:
        """Fill the front of `buffer`; return the byte count, 0 if the peer has ended its side.

        `due`: bytes that the peer still has to send in any case; a wait may go on until many of them are there.
        """

    def receive_now(self, buffer: memoryview) -> int | None:
        """Receive like `receive_into`, but return None instead of waiting."""

    async def wait_readable(self) -> None:
        """Wait until there is something to receive."""

    async def give_way(self) -> None:
        """Give other tasks their turn."""

    async def send(self, pieces: Sequence[Piece]) -> None:
        """Send all pieces in order. If cancelled half way, the connection is of no use any more: close it."""

    def close(self) -> None:
        """Close at once. Closing twice does nothing."""


class SocketTransport:
    """A connected TCP socket. A task that waits for it gets NetworkError when the socket is closed."""

    __slots__ = ("_awaited_bytes", "_socket", "_unshared_bytes", "_until_look", "sent_at")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._awaited_bytes = 1
        self._unshared_bytes = 0
        self._until_look = 0
        self.sent_at = float("-inf")

    @property
    def descriptor(self) -> int:
        """The number of the open socket."""
        return self._socket.fileno()

    @property
    def had_its_share(self) -> bool:
        """True if a receiver should `give_way` now."""
        return self._unshared_bytes > FAIR_SHARE_BYTES

    async def receive_into(self, buffer: memoryview, due: int = 1) -> int:
        """Fill the front of `buffer`; return the byte count, 0 if the peer has ended its side. Raises NetworkError."""
        while (received := self.receive_now(buffer)) is None:
            awaited = min(due, AWAITED_BYTES)
            if awaited != self._awaited_bytes:
                self._await_bytes(awaited)
            await self.wait_readable()
        if self.had_its_share:
            await self.give_way()
        return received

    def _await_bytes(self, count: int) -> None:
        try:
            await_bytes(self._socket, count)
        except OSError as error:
            raise NetworkError(f"connection lost: {error}") from error
        self._awaited_bytes = count

    def receive_now(self, buffer: memoryview) -> int | None:
        """Receive like `receive_into`, but return None instead of waiting."""
        try:
            received = self._socket.recv_into(buffer)
        except BlockingIOError:
            self._unshared_bytes = 0
            return None
        except OSError as error:
            raise NetworkError(f"connection lost: {error}") from error
        self._unshared_bytes += received
        return received

    async def wait_readable(self) -> None:
        """Wait until there is something to receive. Raises NetworkError."""
        try:
            await trio.lowlevel.wait_readable(self._socket)
        except (OSError, trio.ClosedResourceError) as error:
            raise NetworkError(f"connection lost: {error}") from error

    async def give_way(self) -> None:
        """Give other tasks their turn."""
        self._unshared_bytes = 0
        await trio.lowlevel.checkpoint()

    async def send(self, pieces: Sequence[Piece]) -> None:
        """Send all pieces in order. If cancelled half way, the connection is of no use any more: close it."""
        buffers: list[bytes | bytearray | memoryview] = []
        copied_bytes = 0
        if self._until_look:
            self._until_look -= 1
        look = self._until_look == 0
        try:
            for number, piece in enumerate(pieces, 1):
                if number % PIECES_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                if isinstance(piece, FileRegion):
                    if piece.size <= COPIED_BYTES and (copied := read_cached(piece)) is not None:
                        buffers.append(copied)
                        copied_bytes += len(copied)
                        if copied_bytes > MAX_COPIED_BYTES:
                            await self._send_buffers(buffers, socket.MSG_MORE)
                            buffers, copied_bytes = [], 0
                        continue
                    if buffers:
                        await self._send_buffers(buffers, socket.MSG_MORE)
                        buffers, copied_bytes = [], 0
                    is_cold = await self._send_file(piece, look=look)
                    if look or is_cold:
                        self._until_look = 0 if is_cold else LOOK_EVERY
                    look = is_cold  # a region behind one that was not cached is seldom cached
                else:
                    buffers.append(piece)
            if buffers:
                await self._send_buffers(buffers, 0)
        except (OSError, trio.ClosedResourceError) as error:
            raise NetworkError(f"connection lost: {error}") from error

    async def _send_buffers(self, buffers: list[bytes | bytearray | memoryview], flags: int) -> None:
        first = 0
        while first < len(buffers):
            batch = buffers[first : first + MAX_BUFFERS_PER_CALL]
            try:
                sent = self._socket.sendmsg(batch, (), flags)
            except BlockingIOError:
                await self._wait_writable()
                continue
            while first < len(buffers) and sent >= len(buffers[first]):
                sent -= len(buffers[first])
                first += 1
            if sent:
                buffers[first] = memoryview(buffers[first])[sent:]

    async def _send_file(self, region: FileRegion, *, look: bool) -> bool:
        """Send a region. If it is large or `look`, a thread first reads what is not cached. True if it had to."""
        source = region.file.fileno()
        position, end = region.position, region.position + region.size
        chunk_end, is_cold = (position if look or region.size > SMALL_BYTES else end), False
        while position < end:
            if position == chunk_end:
                size = min(CHUNK_BYTES, end - position)
                chunk_end += size
                if not is_cached(source, position, size):
                    is_cold = True
                    await read_into_cache(FileRegion(region.file, position, size))
            try:
                sent = os.sendfile(self._socket.fileno(), source, position, chunk_end - position)
            except BlockingIOError:
                await self._wait_writable()
                continue
            if sent == 0:  # otherwise the loop would never end
                raise OSError(errno.EIO, "the file ends before the region does")
            position += sent
        return is_cold

    async def _wait_writable(self) -> None:
        await trio.lowlevel.wait_writable(self._socket)
        self.sent_at = trio.current_time()

    @property
    def peer_host(self) -> str:
        """The address of the peer; empty if it has left."""
        try:
            return str(self._socket.getpeername()[0])
        except OSError:
            return ""

    def detach(self) -> socket.socket:
        """Return the socket, for another transport. This one is closed then."""
        return socket.socket(fileno=self._socket.detach())

    def end_sending(self) -> None:
        """Tell the peer that nothing more is sent. What it still sends can be received."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close at once. Closing twice does nothing."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def await_bytes(connected: socket.socket, count: int) -> None:
    """Make a socket readable once so many bytes are there, or it has ended, or its buffer is full. Raises OSError."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


async def connect(address: HostPort) -> SocketTransport:
    """Connect to the first address of the host that answers. Raises NetworkError."""
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        raise NetworkError(f"cannot connect to {address}: {_reason(error)}") from error
    except ValueError as error:  # an address from a peer, with an impossible name
        raise NetworkError(f"cannot connect to {address}: no host has such a name") from error
    except OverflowError as error:
        raise NetworkError(f"cannot connect to {address}: no server has such a port") from error
    return SocketTransport(socket.socket(fileno=stream.socket.detach()))


def _reason(error: OSError) -> str:
    """Return the innermost cause, without the address: trio wraps the failures of all addresses that it tried."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, OSError) and cause.errno is not None:
        return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
    return str(cause)
