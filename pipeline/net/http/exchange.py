"""A request and its answer, as an ASGI application sees them.

The body is received when the application asks for it. An answer whose body is one message leaves in one piece; one of
several messages is sent in chunks (HTTP/1.0: until the connection ends).

Source: the ASGI specification 3.0, HTTP 2.4; RFC 9112.
"""

import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import unquote, urlsplit

import trio
from starlette.types import Message, Scope

from pipeline.errors import NetworkError
from pipeline.model import HostPort
from pipeline.net.http.requests import BAD_REQUEST, BadRequestError, HttpRequest

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ASGI = {"version": "3.0", "spec_version": "2.4"}
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s" % (status, status.phrase.encode()) for status in HTTPStatus}
_TLS = "tls"
_CLIENT_NAME = "client_cert_name"
"""Keys of ASGI's extension for TLS."""
_BODILESS = frozenset({204, 304})


def http_scope(
    request: HttpRequest, client: HostPort, server: HostPort, scheme: str = "http", certificate_name: str | None = None
) -> Scope:
    """Return the scope of a request. Raises BadRequestError for a target that is no path.

    `certificate_name`: distinguished name of the client's certificate (RFC 4514), None without one.
    """
    target = request.target
    if not target.startswith(b"/") and target != b"*":
        try:
            parts = urlsplit(target)
        except ValueError as error:
            raise BadRequestError(BAD_REQUEST, "the target is no URL") from error
        if parts.scheme not in {b"http", b"https"}:
            raise BadRequestError(BAD_REQUEST, "the target is no path")
        target = (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")
    raw_path, _, query = target.partition(b"?")
    try:
        path = raw_path.decode("ascii")
    except UnicodeDecodeError as error:
        raise BadRequestError(BAD_REQUEST, "the target is not ASCII") from error
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": request.version,
        "method": request.method,
        "scheme": scheme,
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": request.headers,
        "client": (client.host, client.port),
        "server": (server.host, server.port),
        "extensions": {} if certificate_name is None else {_TLS: {_CLIENT_NAME: certificate_name}},
    }


def certificate_name_of(scope: Scope) -> str | None:
    """Return the distinguished name of the client's certificate, None without one."""
    name: str | None = scope.get("extensions", {}).get(_TLS, {}).get(_CLIENT_NAME)
    return name


class HttpExchange:
    """A request and its answer. `receive` and `send` are the application's."""

    def __init__(
        self,
        request: HttpRequest,
        receive_more: Callable[[], Awaitable[None]],
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """`receive_more` waits for a further part of the request; `write` sends bytes."""
        self.keep_alive = request.keep_alive
        """True if the connection may take a further request after this one."""
        self.has_begun = False
        """True if a part of the answer was sent."""
        self.is_over = False
        """True if the whole answer was sent."""
        self._request = request
        self._receive_more = receive_more
        self._write = write
        self._must_continue = request.expects_continue
        self._is_received = False
        self._start: Message | None = None
        self._is_chunked = False

    async def receive(self) -> Message:
        """Return the next part of the body. After its end, wait until cancelled: nobody watches the connection."""
        request = self._request
        if self._is_received and not self.is_over:
            await trio.sleep_forever()
        try:
            while not request.parts and not request.is_complete:
                if self._must_continue:
                    self._must_continue = False
                    await self._write(CONTINUE)
                await self._receive_more()
        except (NetworkError, BadRequestError):
            self.keep_alive = False
            return {"type": "http.disconnect"}
        if self.is_over:
            return {"type": "http.disconnect"}
        body = request.take_parts()
        self._is_received = request.is_complete
        return {"type": "http.request", "body": body, "more_body": not self._is_received}

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        head = b""
        if not self.has_begun:
            if self._request.parts or not self._request.is_complete:
                self.keep_alive = False  # what follows in the stream is the rest of this request
            assert self._start is not None
            head = self._head(self._start, len(body) if is_last else None)
            self.has_begun = True
        if self._request.method == "HEAD" or (self._start or {}).get("status") in _BODILESS:
            body = b""
        elif self._is_chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if is_last else b"")
        await self._write(head + body)
        self.is_over = is_last

    def _head(self, start: Message, length: int | None) -> bytes:
        status: int = start["status"]
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status]
        has_length = False
        for name, value in start.get("headers", ()):
            lines.append(name + b": " + value)
            has_length = has_length or name == b"content-length"
        if not has_length and status not in _BODILESS:
            if length is not None:
                lines.append(b"content-length: %d" % length)
            elif self._request.version == "1.1":
                self._is_chunked = True
                lines.append(b"transfer-encoding: chunked")
            else:
                self.keep_alive = False
        lines.append(date_line())
        if not self.keep_alive:
            lines.append(b"connection: close")
        elif self._request.version == "1.0":
            lines.append(b"connection: keep-alive")
        head = b"\r\n".join(lines)
        if head.count(b"\n") >= len(lines) or head.count(b"\r") >= len(lines):
            raise ValueError("a header of the answer holds a line break")
        return head + b"\r\n\r\n"


class _Date:
    """The line of the date, written once a second."""

    second = 0
    line = b""


def date_line() -> bytes:
    """Return the header `date` of an answer that is sent now."""
    now = int(time.time())
    if now != _Date.second:
        _Date.second, _Date.line = now, b"date: " + formatdate(now, usegmt=True).encode()
    return _Date.line


def error_answer(status: int) -> bytes:
    """Return the answer of the server itself, after which the connection ends."""
    return b"%b\r\ncontent-length: 0\r\n%b\r\nconnection: close\r\n\r\n" % (_STATUS_LINES[status], date_line())
