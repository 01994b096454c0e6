"""TLS on connected sockets: the handshake, and the connection behind it as the rest of the package uses it.

A handshake takes a processor about a millisecond, so that threads do it, two at a time, and it has a deadline: a
thousand new clients delay no old one. There is no sendfile: what is sent from files is read first, by a thread where
the read would wait for the disk.
"""

import os
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import trio

from pipeline.errors import AuthenticationError, NetworkError
from pipeline.model import ANONYMOUS, FileRegion
from pipeline.net.page_cache import read_cached, read_into_cache
from pipeline.net.transport import FAIR_SHARE_BYTES, Piece, SocketTransport

HANDSHAKE_S = 10.0
"""Time for a handshake, together with the wait for its turn."""
HANDSHAKES_AT_ONCE = 2
MAX_WAITING_HANDSHAKES = 1000
"""Handshakes under way and waiting; further connections are closed at once."""
JOINED_BYTES = 64 * 1024
"""Small pieces are joined up to this size: each call encrypts records of its own."""
READ_BYTES = 256 * 1024
"""Bytes of a file that are read at a time."""

_EXPIRED = 10
_NOT_YET_VALID = 9
_UNTRUSTED = frozenset({2, 18, 19, 20, 21, 24})
_OTHER_NAME = frozenset({62, 64})


class TlsTransport:
    """An encrypted connection (see `transport.Transport`)."""

    __slots__ = ("_socket", "_unshared_bytes", "_wants_write", "sent_at")

    def __init__(self, encrypted: ssl.SSLSocket) -> None:
        """Take a socket after its handshake."""
        self._socket = encrypted
        self._unshared_bytes = 0
        self._wants_write = False
        self.sent_at = float("-inf")

    @property
    def descriptor(self) -> int:
        """The number of the open socket."""
        return self._socket.fileno()

    @property
    def had_its_share(self) -> bool:
        """True if a receiver should `give_way` now."""
        return self._unshared_bytes > FAIR_SHARE_BYTES

    async def receive_into(self, buffer: memoryview, due: int = 1) -> int:  # noqa: ARG002
        """Fill the front of `buffer`; return the byte count, 0 if the peer has ended its side. Raises NetworkError."""
        while (received := self.receive_now(buffer)) is None:
            await self.wait_readable()
        if self.had_its_share:
            await self.give_way()
        return received

    def receive_now(self, buffer: memoryview) -> int | None:
        """Receive like `receive_into`, but return None instead of waiting. A call takes many records of TLS."""
        filled = 0
        try:
            while filled < len(buffer):
                received = self._socket.recv_into(buffer[filled:])
                if not received:
                    break
                filled += received
        except ssl.SSLWantReadError:
            self._wants_write = False
            if not filled:
                self._unshared_bytes = 0
                return None
        except ssl.SSLWantWriteError:
            self._wants_write = True
            if not filled:
                return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):  # many peers leave without a word
            pass
        except (OSError, ValueError) as error:
            raise NetworkError(f"connection lost: {error}") from error
        self._unshared_bytes += filled
        return filled

    async def wait_readable(self) -> None:
        """Wait until there is something to receive. Raises NetworkError."""
        try:
            if self._wants_write:
                await trio.lowlevel.wait_writable(self._socket)
            elif not self._socket.pending():
                await trio.lowlevel.wait_readable(self._socket)
            else:
                await trio.lowlevel.checkpoint()
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
        """Send bytes. While the socket takes no more, the same bytes are offered again, as OpenSSL demands."""
        left = memoryview(data)
        since_share = 0
        while left:
            try:
                sent = self._socket.send(left)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._socket)
                self.sent_at = trio.current_time()
                continue
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._socket)
                continue
            left = left[sent:]
            since_share += sent
            if since_share > FAIR_SHARE_BYTES and left:
                since_share = 0
                await trio.lowlevel.checkpoint()

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
    """The handshakes of a server or client: a few at a time, and a bounded number that waits."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(HANDSHAKES_AT_ONCE)
        self.waiting = 0
        self.refused = 0

    async def accept(self, transport: SocketTransport, context: ssl.SSLContext) -> tuple[TlsTransport, str]:
        """Encrypt the connection of a client. Return it, and the distinguished name of the client's certificate.

        The name is ANONYMOUS without a certificate. Raises AuthenticationError, NetworkError; the connection is closed
        then.
        """
        if self.waiting >= MAX_WAITING_HANDSHAKES:
            self.refused += 1
            transport.close()
            raise AuthenticationError(f"{MAX_WAITING_HANDSHAKES} TLS handshakes wait already")
        encrypted = await self._shake(transport, context, server_side=True, hostname=None)
        certificate = encrypted.getpeercert(binary_form=True)
        return TlsTransport(encrypted), ANONYMOUS if certificate is None else distinguished_name(certificate)

    async def connect(self, transport: SocketTransport, context: ssl.SSLContext, hostname: str) -> TlsTransport:
        """Encrypt the connection to a server of this name. Raises like `accept`."""
        return TlsTransport(await self._shake(transport, context, server_side=False, hostname=hostname))

    async def _shake(
        self, transport: SocketTransport, context: ssl.SSLContext, *, server_side: bool, hostname: str | None
    ) -> ssl.SSLSocket:
        self.waiting += 1
        encrypted: ssl.SSLSocket | None = None
        plain = transport.detach()
        try:
            with trio.fail_after(HANDSHAKE_S):
                encrypted = context.wrap_socket(
                    plain, server_side=server_side, server_hostname=hostname, do_handshake_on_connect=False
                )
                encrypted.setblocking(False)
                await self._finish(encrypted)
        except BaseException as error:
            (plain if encrypted is None else encrypted).close()
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
        return encrypted

    async def _finish(self, encrypted: ssl.SSLSocket) -> None:
        step = partial(trio.to_thread.run_sync, encrypted.do_handshake, limiter=self._threads)
        while True:
            try:
                await step()
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(encrypted)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(encrypted)
            else:
                return


def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a certificate in DER as Kafka names it: `CN=alice,OU=logs,O=Example` (RFC 2253).

    Raises AuthenticationError.
    """
    from cryptography import x509  # clients, which have no use for it, would take the time and memory, too

    try:
        return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
    except ValueError as error:
        raise AuthenticationError(f"the certificate has no readable subject: {error}") from error


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
