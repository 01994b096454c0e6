"""A proxy before an HTTP server, that misbehaves on order."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Fault:
    """What happens to the next requests with this method and end of path.

    `then` is called before the answer, and after the request was passed on, if it was. With `is_late` it is passed on
    only after `FaultyProxy.let_through`, long after its answer.
    """

    method: str
    ending: str
    times: int = 1
    is_forwarded: bool = True
    status: int | None = 500
    """Answer in place of the server's; None is no answer until the proxy ends."""
    is_late: bool = False
    then: Callable[[], None] | None = None


@dataclass
class FaultyProxy:
    """Passes requests on to `target`, but for `faults`. `ignores_conditions` drops If-None-Match."""

    target: str
    faults: list[Fault] = field(default_factory=list)
    ignores_conditions: bool = False
    stopped: threading.Event = field(default_factory=threading.Event)
    late: list[threading.Thread] = field(default_factory=list)
    may_pass: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def let_through(self) -> None:
        """Passes late requests on, and waits until they were answered."""
        self.may_pass.set()
        for thread in self.late:
            thread.join()

    def forward(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
        connection = http.client.HTTPConnection(self.target, timeout=60)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = response.status, response.getheaders(), response.read()
        connection.close()
        return answer

    def forward_late(self, *request: Any) -> None:
        def wait_and_forward() -> None:
            self.may_pass.wait()
            self.forward(*request)

        self.late.append(threading.Thread(target=wait_and_forward))
        self.late[-1].start()

    def due(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.times and fault.method == method and path.split("?", maxsplit=1)[0].endswith(fault.ending):
                fault.times -= 1
                return fault
        return None


@contextmanager
def faulty_proxy(target: str) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(target.removeprefix("http://"))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = proxy.due(self.command, self.path)
            status, headers, content = 500, [], b""
            dropped = {"expect", "connection"} | ({"if-none-match"} if proxy.ignores_conditions else set())
            passed = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
            if fault is not None and fault.is_late:
                proxy.forward_late(self.command, self.path, body, passed)
            elif fault is None or fault.is_forwarded:
                status, headers, content = proxy.forward(self.command, self.path, body, passed)
            if fault is not None and fault.then is not None:
                fault.then()
            if fault is not None:
                if fault.status is None:
                    proxy.stopped.wait()
                    self.close_connection = True
                    return
                status, headers, content = fault.status, [], b""
            self.send_response(status)
            kept = [(name, value) for name, value in headers if name.lower() not in {"connection", "transfer-encoding"}]
            for name, value in kept:
                if name.lower() != "content-length" or self.command == "HEAD":
                    self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self.answer
            raise AttributeError(name)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.let_through()
            proxy.stopped.set()
            server.shutdown()
            thread.join()
