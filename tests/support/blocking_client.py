"""Requests over a plain socket, one after the other or pipelined, for tests that are not written in trio."""

import socket
from typing import Self

from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.schema import Message

DEADLINE_S = 180


class BlockingClient:
    """A connection to a broker."""

    def __init__(self, address: tuple[str, int], connection: socket.socket | None = None) -> None:
        self._machine = ClientConnection("good")
        self.connection = connection or socket.create_connection(address, DEADLINE_S)

    def send(self, message: Message, version: int) -> None:
        pieces = self._machine.encode_request(message, version)[1]
        self.connection.sendall(b"".join(map(bytes, pieces)))  # type: ignore[arg-type]

    def receive(self) -> Message:
        while (answer := self._machine.next_response()) is None:
            received = self.connection.recv_into(self._machine.get_buffer())
            assert received, "disconnected"
            self._machine.bytes_received(received)
        return answer[1]

    def ask(self, message: Message, version: int) -> Message:
        self.send(message, version)
        return self.receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
