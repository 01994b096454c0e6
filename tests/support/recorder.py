"""A door in front of a broker that notes what comes through: every client, api key and version.

Bytes pass as they are. The broker tells the door as its advertised listener, so that clients never find a way around.
A client is known by what it calls itself in ApiVersions (from version 3 on), else by its client id.
"""

import socket
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import LargeRequest, Request, ServerConnection
from pipeline.protocol.messages.api_versions import ApiVersionsRequest
from pipeline.protocol.schema import Message

CHUNK_BYTES = 1 << 16
MAX_REQUEST_BYTES = 1 << 27
JOIN_DEADLINE_S = 60


class Recorder:
    """`seen` holds the versions of each api key by the client's name and version."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], dict[ApiKey, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def address(self) -> str:
        """Where clients begin, and what the broker is to advertise."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    @contextmanager
    def opened(self, target: str) -> Iterator[None]:
        """Let clients through to the broker at `target`. Those who came before wait until now."""
        host, _, port = target.partition(":")
        accepting = Thread(target=self._accept, args=[(host, int(port))], daemon=True)
        accepting.start()
        try:
            yield
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            accepting.join(JOIN_DEADLINE_S)

    def close(self) -> None:
        """Nobody comes any more."""
        self._listener.close()

    def _accept(self, target: tuple[str, int]) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                Thread(target=self._serve, args=[client, target], daemon=True).start()

    def _serve(self, client: socket.socket, target: tuple[str, int]) -> None:
        """One connection, until either end closes it."""
        with client, socket.create_connection(target) as broker:
            back = Thread(target=_pass_answers, args=[broker, client], daemon=True)
            back.start()
            try:
                with suppress(OSError):
                    self._pass_requests(client, broker)
            finally:
                _end(client, broker)
                back.join()

    def _pass_requests(self, client: socket.socket, broker: socket.socket) -> None:
        machine = ServerConnection(MAX_REQUEST_BYTES)
        name: tuple[str, str] | None = None
        while count := client.recv_into(buffer := machine.get_buffer()):
            broker.sendall(buffer[:count])
            machine.bytes_received(count)
            while (request := machine.next_request()) is not None:
                name = _name(request) or name or (request.client_id or "", "")
                self.seen[name][request.api_key].add(request.api_version)


def _name(request: Request[Message] | LargeRequest) -> tuple[str, str] | None:
    body = request.body
    if isinstance(body, ApiVersionsRequest) and body.client_software_name:
        return body.client_software_name, body.client_software_version
    return None


def _pass_answers(broker: socket.socket, client: socket.socket) -> None:
    with suppress(OSError):
        while data := broker.recv(CHUNK_BYTES):
            client.sendall(data)
    _end(client, broker)


def _end(*connections: socket.socket) -> None:
    for connection in connections:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
