"""Connections of kazoo over TLS: opened with our context, and read while decrypted bytes are left."""

import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from pipeline.coordination.zookeeper_security import ZooKeeperSecurity
from pipeline.errors import ConfigurationError
from pipeline.net.security.tls import fault_of


class TlsHandler(SequentialThreadingHandler):
    """Opens each connection with the certificates that the files hold at that time.

    `on_fault` is called in kazoo's thread with a sentence that says why a connection failed.
    """

    def __init__(self, security: ZooKeeperSecurity, on_fault: Callable[[str], None]) -> None:
        super().__init__()
        self._security = security
        self._on_fault = on_fault

    def create_connection(
        self, address: tuple[str, int], *, hostname: str, timeout: float, **_settings: Any
    ) -> socket.socket:
        """Connect and shake hands. Raises OSError, which kazoo takes for a lost connection."""
        try:
            context = self._security.context()
            assert context is not None
            plain = socket.create_connection(address, timeout)
        except ConfigurationError as error:
            self._on_fault(str(error))
            raise OSError(str(error)) from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(plain, server_hostname=hostname)
        except OSError as error:
            plain.close()
            reason = fault_of(error) if isinstance(error, ssl.SSLError) else str(error.strerror or error)
            self._on_fault(f"{hostname}:{address[1]}: {reason}")
            raise

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], others: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait for sockets. Bytes that are decrypted already make a socket readable, which the system cannot know."""
        pending = [each for each in readers if isinstance(each, ssl.SSLSocket) and each.pending() > 0]
        wait_s = 0 if pending else timeout
        readable, writable, exceptional = super().select(readers, writers, others, wait_s)
        return [*pending, *(each for each in readable if each not in pending)], writable, exceptional
