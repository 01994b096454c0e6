"""TLS on connected sockets: the handshake, and the connection behind it as the rest of the package uses it.

A handshake takes a processor about a millisecond, so that threads do it, two at a time, and it has a deadline: a
thousand new clients delay no old one. An address whose clients hold most handshakes makes room for others. There is no
sendfile: what is sent from files is read first, by a thread where the read would wait for the disk.
"""

import os
import socket
import ssl
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import trio

from pipeline.errors import AuthenticationError, NetworkError
from pipeline.model import ANONYMOUS, FileRegion
from pipeline.net.page_cache import read_cached, read_into_cache
from pipeline.net.transport import AWAITED_BYTES, FAIR_SHARE_BYTES, Piece, SocketTransport, await_bytes

HANDSHAKE_S = 10.0
"""Time for a handshake, together with the wait for its turn."""
HANDSHAKES_AT_ONCE = 2
MAX_WAITING_HANDSHAKES = 1000
"""Handshakes under way and waiting; further connections are closed at once."""
MAX_RECORD_BYTES = 5 + 16 * 1024 + 2048
"""Longest record of TLS, with its head."""
FIRST_CHUNK_BYTES = 8 * 1024
MAX_CHUNK_BYTES = 32 * 1024
"""Encrypted bytes that are received, or made to be sent, at a time: few at first, more from a peer that sends data."""
POOR_CHUNK_BYTES = 2 * 1024
"""Bytes that are received at a time from a peer that sends little data: OpenSSL takes about half a millisecond."""
POOR_BYTES = 32 * 1024
"""Bytes without data from which on a peer is poor; a whole record has half as many."""
MAX_WASTED_BYTES = 1024 * 1024
"""Bytes without data after which a connection ends: records of one byte, or none that is data, help nobody."""
DATA_FACTOR = 3
"""Each byte of data makes up for so many received bytes."""
JOINED_BYTES = 64 * 1024
"""Small pieces are joined up to this size: each call encrypts records of its own."""
READ_BYTES = 256 * 1024
"""Bytes of a file that are read at a time."""

_EXPIRED = 10
_NOT_YET_VALID = 9
_UNTRUSTED = frozenset({2, 18, 19, 20, 21, 24})
_OTHER_NAME = frozenset({62, 64})


class _Ends(NamedTuple):
    """OpenSSL's end of a connection, between what was received and what is to be sent, both encrypted."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO


class TlsTransport:
    """An encrypted connection (see `transport.Transport`).

    OpenSSL reads on as long as there are records without data, and each record may hold a single byte. So it is given
    little at a time: `MAX_CHUNK_BYTES`, and from a peer of whose last bytes few were data `POOR_CHUNK_BYTES`, after
    which others have their turn.
    """

    __slots__ = (
        "_awaited_bytes",
        "_chunk_bytes",
        "_ends",
        "_scratch",
        "_socket",
        "_unsent",
        "_unshared_bytes",
        "_wasted_bytes",
        "sent_at",
    )

    def __init__(self, connected: socket.socket, ends: _Ends, scratch: memoryview) -> None:
        """Take a connection after its handshake. `scratch` is memory that all connections of a thread may share."""
        self._socket = connected
        self._ends = ends
        self._scratch = scratch
        self._awaited_bytes = 1
        self._chunk_bytes = FIRST_CHUNK_BYTES
        self._wasted_bytes = 0
        self._unsent = memoryview(b"")
        self._unshared_bytes = 0
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
            self._await_bytes(max(1, min(due, AWAITED_BYTES) - MAX_RECORD_BYTES))  # a part of a record is here already
            await self.wait_readable()
        if self.had_its_share:
            await self.give_way()
        return received

    def _await_bytes(self, count: int) -> None:
        """Be readable once so many encrypted bytes are there, of which there are more than of data."""
        if count == self._awaited_bytes:
            return
        try:
            await_bytes(self._socket, count)
        except OSError as error:
            raise NetworkError(f"connection lost: {error}") from error
        self._awaited_bytes = count

    def receive_now(self, buffer: memoryview) -> int | None:
        """Receive like `receive_into`, but return None instead of waiting. A call takes many records of TLS."""
        filled, has_taken, has_ended = 0, False, False
        try:
            while filled < len(buffer) and not has_ended:
                try:
                    received = self._ends.tls.read(len(buffer) - filled, buffer[filled:])
                except ssl.SSLWantReadError:
                    if has_taken and self._wasted_bytes > POOR_BYTES:
                        self._unshared_bytes = FAIR_SHARE_BYTES + 1
                        break
                    if not self._take():
                        break
                    has_taken = True
                    continue
                has_ended = not received
                filled += received  # type: ignore[operator]
                self._wasted_bytes -= DATA_FACTOR * received  # type: ignore[operator]
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):  # many peers leave without a word
            has_ended = True
        except (OSError, ValueError) as error:
            raise NetworkError(f"connection lost: {error}") from error
        self._answer_records()
        self._unshared_bytes += filled
        return filled if filled or has_ended else None

    def _take(self) -> bool:
        """Give OpenSSL the next bytes of the socket. False if none have come."""
        is_poor = self._wasted_bytes > POOR_BYTES
        if self._wasted_bytes > MAX_WASTED_BYTES:
            raise OSError(f"{MAX_WASTED_BYTES} bytes of TLS came with almost no data")
        try:
            received = self._socket.recv_into(self._scratch[: POOR_CHUNK_BYTES if is_poor else self._chunk_bytes])
        except BlockingIOError:
            self._unshared_bytes = 0
            return False
        if received:
            self._ends.incoming.write(self._scratch[:received])
            self._wasted_bytes = max(0, self._wasted_bytes) + received
            self._chunk_bytes = FIRST_CHUNK_BYTES if is_poor else min(2 * self._chunk_bytes, MAX_CHUNK_BYTES)
        else:
            self._ends.incoming.write_eof()
        return True

    def _answer_records(self) -> None:
        """Send what TLS itself answers, as far as the peer reads it. Raises NetworkError if much is left."""
        if not self._ends.outgoing.pending:
            return
        try:
            self._flush_now()
        except OSError as error:
            raise NetworkError(f"connection lost: {error}") from error
        if self._ends.outgoing.pending > MAX_CHUNK_BYTES:
            raise NetworkError("connection ended: the peer demands answers of TLS, and does not read them")

    async def wait_readable(self) -> None:
        """Wait until there is something to receive. Raises NetworkError."""
        try:
            if self._ends.tls.pending() or self._ends.incoming.pending:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(self._socket)
        except (OSError, ValueError, trio.ClosedResourceError) as error:
            raise NetworkError(f"connection lost: {error}") from error

    async def give_way(self) -> None:
        """Give other tasks their turn."""
        self._unshared_bytes = 0
        await trio.lowlevel.checkpoint()

    async def send(self, pieces: Sequence[Piece]) -> None:
        """Send all pieces in order. If cancelled half way, the connection is of no use any more: close it."""
        joined = bytearray()
        try:
            for piece in pieces:
                if len(joined) + len(piece) <= JOINED_BYTES and not isinstance(piece, FileRegion):
                    joined += piece
                    continue
                if joined:
                    await self._send(joined)
                    joined = bytearray()
                if isinstance(piece, FileRegion):
                    await self._send_file(piece)
                elif len(piece) <= JOINED_BYTES:
                    joined += piece
                else:
                    await self._send(piece)
            if joined:
                await self._send(joined)
        except (OSError, ValueError, trio.ClosedResourceError) as error:
            raise NetworkError(f"connection lost: {error}") from error

    async def _send_file(self, region: FileRegion) -> None:
        position, end = region.position, region.position + region.size
        while position < end:
            part = FileRegion(region.file, position, min(READ_BYTES, end - position))
            data: bytes | bytearray | None = read_cached(part)
            if data is None:
                await read_into_cache(part)
                data = os.pread(region.file.fileno(), part.size, position)
            if not data:  # otherwise the loop would never end
                raise OSError("the file ends before the region does")
            await self._send(data)
            position += len(data)

    async def _send(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt bytes, a chunk at a time, and send them."""
        left = memoryview(data)
        since_share = 0
        while left:
            chunk, left = left[:MAX_CHUNK_BYTES], left[MAX_CHUNK_BYTES:]
            since_share += len(chunk)
            while chunk:
                chunk = chunk[self._ends.tls.write(chunk) :]
            await self._flush()
            if since_share > FAIR_SHARE_BYTES and left:
                since_share = 0
                await trio.lowlevel.checkpoint()

    async def _flush(self) -> None:
        while True:
            self._flush_now()
            if not self._unsent:
                return
            await trio.lowlevel.wait_writable(self._socket)
            self.sent_at = trio.current_time()

    def _flush_now(self) -> None:
        """Send what is encrypted, as far as the socket takes it."""
        while self._unsent or self._ends.outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self._ends.outgoing.read())
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                return

    def end_sending(self) -> None:
        """Tell the peer that nothing more is sent. What it still sends can be received."""
        with suppress(OSError, ValueError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close at once. Closing twice does nothing."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class Handshakes:
    """The handshakes of a server or client: a few at a time, and a bounded number that waits, fairly by address."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(HANDSHAKES_AT_ONCE)
        self._scratch = memoryview(bytearray(MAX_CHUNK_BYTES))
        self._by_host: defaultdict[str, dict[trio.CancelScope, None]] = defaultdict(dict)
        self.waiting = 0
        self.refused = 0

    async def accept(self, transport: SocketTransport, context: ssl.SSLContext) -> tuple[TlsTransport, str]:
        """Encrypt the connection of a client. Return it, and the distinguished name of the client's certificate.

        The name is ANONYMOUS without a certificate. Raises AuthenticationError, NetworkError; the connection is closed
        then.
        """
        host = transport.peer_host
        if self.waiting >= MAX_WAITING_HANDSHAKES and not self._make_room(host):
            self.refused += 1
            transport.close()
            raise AuthenticationError(f"{MAX_WAITING_HANDSHAKES} TLS handshakes wait already")
        of_host = self._by_host[host]
        with trio.CancelScope() as scope:
            of_host[scope] = None
            try:
                connected, ends = await self._shake(transport, context, server_side=True, hostname=None)
            finally:
                del of_host[scope]
                if not of_host:
                    self._by_host.pop(host, None)
        if scope.cancelled_caught:
            raise AuthenticationError("the TLS handshake made room for those of other addresses")
        certificate = ends.tls.getpeercert(binary_form=True)
        encrypted = TlsTransport(connected, ends, self._scratch)
        try:
            if certificate is None:
                return encrypted, ANONYMOUS
            return encrypted, distinguished_name(certificate, datetime.now(UTC))
        except BaseException:
            encrypted.close()
            raise

    def _make_room(self, host: str) -> bool:
        """End the oldest handshake of the address that has most, unless that is no more than `host` has."""
        most = max(self._by_host.values(), key=len, default={})
        if len(most) <= len(self._by_host.get(host, ())):
            return False
        self.refused += 1
        oldest = next(scope for scope in most)
        oldest.cancel()
        return True

    async def connect(self, transport: SocketTransport, context: ssl.SSLContext, hostname: str) -> TlsTransport:
        """Encrypt the connection to a server of this name. Raises like `accept`."""
        connected, ends = await self._shake(transport, context, server_side=False, hostname=hostname)
        return TlsTransport(connected, ends, self._scratch)

    async def _shake(
        self, transport: SocketTransport, context: ssl.SSLContext, *, server_side: bool, hostname: str | None
    ) -> tuple[socket.socket, _Ends]:
        self.waiting += 1
        connected = transport.detach()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            with trio.fail_after(HANDSHAKE_S):
                tls = context.wrap_bio(incoming, outgoing, server_side=server_side, server_hostname=hostname)
                ends = _Ends(tls, incoming, outgoing)
                await self._finish(connected, ends, server_side=server_side)
        except BaseException as error:
            connected.close()
            if isinstance(error, trio.TooSlowError):
                raise AuthenticationError(f"no TLS handshake within {HANDSHAKE_S:g} s") from error
            if isinstance(error, ssl.SSLError):
                raise AuthenticationError(fault_of(error)) from error
            if isinstance(error, OSError):
                raise NetworkError(f"connection lost during the TLS handshake: {error}") from error
            if isinstance(error, ValueError):  # a name that cannot be one of a server
                raise AuthenticationError(f"TLS: {error}") from error
            raise
        finally:
            self.waiting -= 1
        return connected, ends

    async def _finish(self, connected: socket.socket, ends: _Ends, *, server_side: bool) -> None:
        step = partial(trio.to_thread.run_sync, ends.tls.do_handshake, limiter=self._threads)
        must_receive = server_side  # the client begins
        while True:
            if must_receive:
                await self._receive(connected, ends)
            must_receive = True
            try:
                await step()
            except ssl.SSLWantReadError:
                await _send_all(connected, ends.outgoing.read())
            except ssl.SSLError:
                with suppress(OSError):
                    connected.send(ends.outgoing.read())  # the alert tells the peer what is wrong
                raise
            else:
                await _send_all(connected, ends.outgoing.read())
                return

    async def _receive(self, connected: socket.socket, ends: _Ends) -> None:
        while True:
            try:
                received = connected.recv_into(self._scratch[:FIRST_CHUNK_BYTES])
            except BlockingIOError:
                await trio.lowlevel.wait_readable(connected)
                continue
            if received:
                ends.incoming.write(self._scratch[:received])
            else:
                ends.incoming.write_eof()
            return


async def _send_all(connected: socket.socket, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[connected.send(left) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(connected)


def distinguished_name(certificate: bytes, now: datetime) -> str:
    """Return the subject of a certificate in DER as Kafka names it: `CN=alice,OU=logs,O=Example` (RFC 2253).

    Raises AuthenticationError, also for a certificate that has ended: a client that resumes a session is not asked for
    it again, and OpenSSL does not look.
    """
    from cryptography import x509  # clients, which have no use for it, would take the time and memory, too

    try:
        found = x509.load_der_x509_certificate(certificate)
        name = found.subject.rfc4514_string()
    except ValueError as error:
        raise AuthenticationError(f"the certificate has no readable subject: {error}") from error
    if found.not_valid_after_utc < now:
        raise AuthenticationError("the certificate of the other side has expired: renew it")
    return name


def fault_of(error: ssl.SSLError) -> str:
    """Return a sentence that says what is wrong with a handshake, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return "the certificate of the other side has expired: renew it"
        if error.verify_code == _NOT_YET_VALID:
            return "the certificate of the other side is not valid yet: compare the clocks"
        if error.verify_code in _OTHER_NAME:
            return f"the certificate of the server is for another name: {error.verify_message}"
        if error.verify_code in _UNTRUSTED:
            return f"nobody who is trusted has signed the certificate of the other side: {error.verify_message}"
        return f"the certificate of the other side is not accepted: {error.verify_message}"
    reason = error.reason or ""
    if reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "BAD_RECORD_TYPE"}:
        return "the other side does not speak TLS: compare the security protocols of both sides"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client sent no certificate, which ssl.client.auth=required demands"
    if reason.startswith(("TLSV1_ALERT", "SSLV3_ALERT", "TLSV13_ALERT")):
        said = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return f"the other side ended the handshake: {said}"
    return f"the TLS handshake failed: {reason.replace('_', ' ').lower() or error}"
