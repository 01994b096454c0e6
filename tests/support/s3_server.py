"""An S3 server in a process of its own (moto's server mode), and a proxy before it that misbehaves on order."""

import http.client
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pipeline.processes import free_port

START_DEADLINE_S = 120.0
BUCKET = "lake"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def running_s3(log: Path) -> Iterator[str]:
    """Starts the server with an empty bucket, and yields its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | ENVIRONMENT)
        try:
            _make_bucket(url, server, log)
            yield url
        finally:
            server.kill()
            server.wait()


def _make_bucket(url: str, server: Any, log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=30):
                return
        except OSError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no S3 server:\n{log.read_text()[-3000:]}") from error
            time.sleep(0.1)


@dataclass
class Fault:
    """What happens to the next requests with this method and end of path."""

    method: str
    ending: str
    times: int = 1
    is_forwarded: bool = True
    status: int | None = 500
    """Answer in place of the server's; None is no answer until the proxy ends."""


@dataclass
class FaultyProxy:
    """Passes requests on to `target`, but for `faults`. `ignores_conditions` drops If-None-Match."""

    target: str
    faults: list[Fault] = field(default_factory=list)
    ignores_conditions: bool = False
    stopped: threading.Event = field(default_factory=threading.Event)
    url: str = ""

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
            if fault is None or fault.is_forwarded:
                dropped = {"expect", "connection"} | ({"if-none-match"} if proxy.ignores_conditions else set())
                passed = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
                connection = http.client.HTTPConnection(proxy.target, timeout=60)
                connection.request(self.command, self.path, body, passed)
                response = connection.getresponse()
                status, headers, content = response.status, response.getheaders(), response.read()
                connection.close()
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
            proxy.stopped.set()
            server.shutdown()
            thread.join()
