"""A TCP proxy before a NameNode, which cuts connections on order: at once, or around the answer to a request."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

CHUNK = 65536


@dataclass
class NameNodeProxy:
    """`cut` breaks all connections. `cut_at` breaks the connection of the next request with this method."""

    port: int
    target: int
    is_dark: bool = False
    """New connections are refused, too."""
    method: bytes | None = None
    awaits_answer: bool = False
    stays_dark: bool = False
    open: set[Any] = field(default_factory=set)
    lock: Any = field(default_factory=threading.Lock)

    def cut(self) -> None:
        with self.lock:
            connections = list(self.open)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def cut_at(self, method: bytes, *, awaits_answer: bool, stays_dark: bool) -> None:
        """`awaits_answer`: the NameNode has answered when the client's connection breaks; else it has the request."""
        self.awaits_answer = awaits_answer
        self.stays_dark = stays_dark
        self.method = method

    def mend(self) -> None:
        self.method, self.is_dark = None, False

    def _break(self) -> None:
        self.is_dark = self.stays_dark
        self.cut()

    def serve(self, client: Any) -> None:
        with client, suppress(OSError):
            if self.is_dark:
                return
            with socket.create_connection(("127.0.0.1", self.target)) as server:
                pair = {client, server}
                with self.lock:
                    self.open |= pair
                answer_is_due = threading.Event()
                back = threading.Thread(target=self._answer, args=(server, client, answer_is_due), daemon=True)
                back.start()
                self._ask(client, server, answer_is_due)
                back.join()
                with self.lock:
                    self.open -= pair

    def _ask(self, client: Any, server: Any, answer_is_due: Any) -> None:
        with suppress(OSError):
            while chunk := client.recv(CHUNK):
                is_request = self.method is not None and self.method in chunk
                if is_request:
                    self.method = None
                    if self.awaits_answer:
                        answer_is_due.set()
                server.sendall(chunk)
                if is_request and not self.awaits_answer:
                    self._break()
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, server: Any, client: Any, answer_is_due: Any) -> None:
        with suppress(OSError):
            while chunk := server.recv(CHUNK):
                if answer_is_due.is_set():
                    answer_is_due.clear()
                    self._break()
                    return
                client.sendall(chunk)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def name_node_proxy(target: int) -> Iterator[NameNodeProxy]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = NameNodeProxy(listener.getsockname()[1], target)

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=proxy.serve, args=(client,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            proxy.cut()
