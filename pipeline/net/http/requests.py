"""Requests of an HTTP/1.1 connection: bytes in, requests and their bodies out. Pure; llhttp (`httptools`) parses.

Invariants:

A. Bytes that complete neither a head nor a part of a body are at most `MAX_UNFINISHED_BYTES`: heads, trailers and
   lengths of chunks are bounded, whatever the pieces in which they arrive. So are the headers of a head in number,
   since short ones take many times their bytes.
B. Bytes are parsed as one sequence of requests, or refused: a length given twice, a length beside chunks, and every
   transfer coding but `chunked` are errors. After an error nothing more is parsed.
C. No request changes the protocol of the connection. A request that offers to (Java's client offers HTTP/2) is read as
   if it did not, as RFC 9110, section 7.8 allows.

Source: RFC 9112.
"""

from collections import deque
from dataclasses import dataclass, field

import httptools

from pipeline.errors import PipelineError

MAX_UNFINISHED_BYTES = 64 * 1024
MAX_HEADERS = 200
BAD_REQUEST = 400
HEAD_TOO_LARGE = 431
NOT_IMPLEMENTED = 501
_VERSIONS = frozenset({"1.0", "1.1"})


class BadRequestError(PipelineError):
    """The bytes are no request that this server answers. `status` is the HTTP status of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(slots=True, kw_only=True)
class HttpRequest:
    """A request whose head has arrived."""

    method: str
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    """Names in lower case, in order."""
    keep_alive: bool
    parts: list[bytes] = field(default_factory=list)
    """Parts of the body that have arrived and were not taken yet."""
    is_complete: bool = False
    """True if the whole body has arrived."""

    def take_parts(self) -> bytes:
        """Return what has arrived of the body since the last call."""
        taken = b"".join(self.parts)
        self.parts.clear()
        return taken

    @property
    def expects_continue(self) -> bool:
        """True if the client waits for leave to send the body."""
        return self.version == "1.1" and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers
        )


class RequestParser:
    """The parser of a connection. Call `close` at its end: parser and callbacks refer to each other."""

    def __init__(self) -> None:
        self.requests: deque[HttpRequest] = deque()
        """Requests in order; their owner takes them away. The last one may be incomplete."""
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._request: HttpRequest | None = None
        self._unfinished_bytes = 0
        self._has_finished = False
        self.part_count = 0
        """Parts of bodies since the owner set it to 0: each one takes time, however short."""
        self.is_between_requests = True
        """True if no byte of a further request has arrived."""

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Parse what has arrived. Raises BadRequestError; the requests before the bad one are in `requests`."""
        assert self._parser is not None
        self._has_finished = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(bytes(data[upgrade.args[0] :]))
            return
        except httptools.HttpParserError as error:
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            if isinstance(cause, BadRequestError):
                raise cause from None
            raise BadRequestError(BAD_REQUEST, str(error)) from error
        self._unfinished_bytes = 0 if self._has_finished else self._unfinished_bytes + len(data)
        if self._unfinished_bytes > MAX_UNFINISHED_BYTES:  # invariant A
            raise BadRequestError(HEAD_TOO_LARGE, f"more than {MAX_UNFINISHED_BYTES} bytes of a head")

    def close(self) -> None:
        """Let go of the parser."""
        self._parser = None

    def _decline_upgrade(self, rest: bytes) -> None:
        """Parse the head again, without the offer, and what follows it (invariant C)."""
        request = self.requests.pop()
        if request.method == "CONNECT":
            raise BadRequestError(BAD_REQUEST, "this server is no proxy")
        lines = [b"%s %s HTTP/%s" % (request.method.encode(), request.target, request.version.encode())]
        lines += [name + b": " + value for name, value in request.headers if name != b"upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        self.feed(b"\r\n".join([*lines, b"", b""]) + rest)

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._target = b""
        self._headers = []
        self.is_between_requests = False

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are dropped."""
        if self._request is None:
            if len(self._headers) == MAX_HEADERS:
                raise BadRequestError(HEAD_TOO_LARGE, f"more than {MAX_HEADERS} headers")
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """End a head."""
        assert self._parser is not None
        version = self._parser.get_http_version()
        if version not in _VERSIONS:
            raise BadRequestError(BAD_REQUEST, f"HTTP/{version} is not served")
        hosts = sum(name == b"host" for name, _ in self._headers)
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise BadRequestError(BAD_REQUEST, f"{hosts} Host headers")
        self._check_transfer_codings(version)
        self._request = HttpRequest(
            method=self._parser.get_method().decode("ascii"),
            target=self._target,
            version=version,
            headers=self._headers,
            keep_alive=self._parser.should_keep_alive(),
        )
        self.requests.append(self._request)
        self._has_finished = True

    def _check_transfer_codings(self, version: str) -> None:
        """Refuse all codings of the message but `chunked` (invariant B): RFC 9112, sections 6.1 and 6.3."""
        values = [value for name, value in self._headers if name == b"transfer-encoding"]
        if not values:
            return
        codings = [coding.strip().lower() for coding in b",".join(values).split(b",")]
        if version == "1.0" or codings.count(b"chunked") != 1 or codings[-1] != b"chunked":
            raise BadRequestError(BAD_REQUEST, "the end of the body cannot be told")
        if len(codings) > 1:
            raise BadRequestError(NOT_IMPLEMENTED, "no transfer coding but chunked is served")

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        assert self._request is not None
        self._request.parts.append(body)
        self.part_count += 1
        self._has_finished = True

    def on_message_complete(self) -> None:
        """End a request."""
        assert self._request is not None
        self._request.is_complete = True
        self._request = None
        self._has_finished = self.is_between_requests = True
