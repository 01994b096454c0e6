"""An HTTP server that answers each path as a test says."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, bytes]


def as_json(document: Any, status: int = 200) -> Answer:
    return status, json.dumps(document).encode()


@contextmanager
def http_server(answers: Mapping[str, Answer]) -> Iterator[str]:
    """URL of the server. `answers`: status and body by path and query; other paths are not found.

    302 leads to the same path below `/there`.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, as_json({"error_code": 40403, "message": "no such schema"}, 404))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"/there{self.path}")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            if self.path in answers:
                self.do_GET()
            else:
                self.send_error(501)

        do_PUT = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
