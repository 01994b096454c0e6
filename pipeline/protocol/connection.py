"""The two ends of a Kafka connection as byte machines: bytes in, messages out; messages in, bytes out. No I/O.

A request is a header (v1: api key, version, correlation id, client id; v2, for flexible versions: and tagged fields)
and a body; a response is a header (v0: correlation id; v1, for flexible versions: and tagged fields) and a body. Two
exceptions: the client id is always an int16-sized string, and the response header of ApiVersions is always v0, so that
a client can read it before versions are negotiated (KIP-511).

Invariants
  A. The server machine hands out requests in the order of arrival; its user must answer in that order, which the client
     machine expects of every server.
  B. Bodies with records keep views of a buffer that is not used again.
  C. Bytes that are not a request that this server serves raise ProtocolError; the connection is then of no use.
     Only ApiVersions of an unknown version is answered: error UNSUPPORTED_VERSION in version 0, with our range.
  D. Bytes behind the body of a request are skipped, as Apache Kafka does: librdkafka 2.x ends a Metadata request for
     all topics (v9 on) with three of them.
"""

import struct
from collections import deque
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from pipeline.errors import ProtocolError, TooManyElementsError
from pipeline.protocol.api import API, ApiKey
from pipeline.protocol.codec import decode, decode_from, encode, is_flexible
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.framing import FrameBuffer
from pipeline.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from pipeline.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from pipeline.protocol.primitives import read_uvarint
from pipeline.protocol.schema import Message, Piece, holds_records
from pipeline.protocol.spare_buffers import SpareBuffers

M_co = TypeVar("M_co", bound=Message, covariant=True)

MAX_RESPONSE_BYTES = 256 * 1024 * 1024
MAX_REQUEST_ELEMENTS = 100_000
"""Bound of elements in all arrays of a request: ten times what the largest cluster needs, decoded in 0.2 s."""
JOINED_BYTES = 64 * 1024
"""A first piece of at most this size is copied behind the head of its message: one piece less to send."""
LARGE_REQUEST_ELEMENTS = 10_000
"""Bound of elements in an ordinary request. A thread decodes a larger one, and encodes its answer."""
MAX_BYTES_WITHOUT_RECORDS = 16 * 1024 * 1024
"""Bound of a request that carries no records: 60,000 topics with the longest names."""
MAX_HEADER_TAGS = 64
BARE_TOKEN = -1
"""The version of a SaslAuthenticate request that came as a bare token, and is answered by one."""

_REQUEST_HEADER = struct.Struct(">hhih")
_FRAME_AND_CORRELATION = struct.Struct(">ii")
_MAX_CLIENT_ID_BYTES = 32767


class Request(NamedTuple, Generic[M_co]):
    """A request as it arrived. `size_bytes` counts header and body."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    body: M_co
    size_bytes: int
    is_large: bool = False
    """True if it has more than LARGE_REQUEST_ELEMENTS elements."""


class LargeRequest(NamedTuple):
    """A large request that is not decoded yet, in memory of its own. Any thread may decode it."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    body: memoryview
    size_bytes: int

    def decode(self) -> Request[Message]:
        """Decode the request. Raises ProtocolError, also beyond MAX_REQUEST_ELEMENTS elements."""
        kind: type[Message] = self.api_key.request
        body, _ = decode_from(kind, self.api_version, self.body, 0, MAX_REQUEST_ELEMENTS)
        return Request(
            self.api_key, self.api_version, self.correlation_id, self.client_id, body, self.size_bytes, is_large=True
        )


def size_of(pieces: list[Piece]) -> int:
    """Bytes in all pieces together."""
    return sum(map(len, pieces))


class ServerConnection:
    """The server's end. `apis` are the keys served. Many ends may share one receive buffer (see `framing`)."""

    __slots__ = ("_apis", "_frames", "large_has_records", "takes_tokens")

    def __init__(
        self, max_request_bytes: int, apis: Mapping[int, ApiKey] = API, shared: memoryview | None = None
    ) -> None:
        self._frames = FrameBuffer(max_request_bytes, shared)
        self._apis = apis
        self.takes_tokens = False
        """True if frames are bare tokens, without header: after SaslHandshake of version 0 (KIP-43)."""
        self.large_has_records = False
        """True if the api key of the large request under way carries records."""

    def admit(self, max_request_bytes: int, apis: Mapping[int, ApiKey]) -> None:
        """Serve these keys from the next request on."""
        self._frames.max_frame_bytes = max_request_bytes
        self._apis = apis

    @property
    def growth(self) -> int:
        """Bytes of memory that the next `get_buffer` takes for a large request; 0 if it needs none."""
        return self._frames.growth

    @property
    def large_size(self) -> int:
        """Bytes of the large request that is under way; 0 if there is none."""
        return self._frames.large_size

    def park(self) -> None:
        """Leave a shared buffer to others; call before any wait."""
        self._frames.park()

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into next. Take all requests first."""
        return self._frames.get_buffer()

    def bytes_received(self, count: int) -> None:
        """Note that `count` bytes were received into that buffer."""
        self._frames.bytes_received(count)

    def next_request(self) -> Request[Message] | LargeRequest | None:
        """Return the next request that has arrived whole; a LargeRequest if a thread should decode it.

        Raises ProtocolError if it is not a request that we serve: close the connection.
        """
        taken = self._frames.next_frame()
        if taken is None:
            if (start := self._frames.large_start) is not None:
                self._expect_large(start)
            return None
        frame, shared = taken
        if self.takes_tokens:
            token = SaslAuthenticateRequest(auth_bytes=bytes(frame))
            return Request(ApiKey.SASL_AUTHENTICATE, BARE_TOKEN, 0, None, token, len(frame))
        try:
            number, version, correlation_id, client_id_size = _REQUEST_HEADER.unpack_from(frame)
        except struct.error as error:
            raise ProtocolError(f"a request of {len(frame)} bytes has no header") from error
        api_key = self._apis.get(number)
        if api_key is None:
            raise ProtocolError(f"api key {number} is not served")
        served = api_key.serves(version)
        if not served and api_key is not ApiKey.API_VERSIONS:
            raise ProtocolError(f"{api_key.name} version {version} is not served")
        client_id, position = _client_id(frame, client_id_size)
        if version >= api_key.flexible_since:
            position = _skip_tagged_fields(frame, position)
        body: Message
        if served:
            body_view = frame[position:]
            if shared and holds_records(api_key.request):
                body_view = memoryview(bytearray(body_view))
            try:
                body, _ = decode_from(api_key.request, version, body_view, 0, LARGE_REQUEST_ELEMENTS)
            except TooManyElementsError:
                own = memoryview(bytearray(body_view)) if shared else body_view
                return LargeRequest(api_key, version, correlation_id, client_id, own, len(frame))
        else:
            body = ApiVersionsRequest()
        return Request(api_key, version, correlation_id, client_id, body, len(frame))

    def _expect_large(self, start: memoryview) -> None:
        """Check the api key and size of a large request before it gets memory."""
        api_key = self._apis.get(int.from_bytes(start[:2], "big", signed=True))
        if api_key is None:
            raise ProtocolError("a large request of an api key that is not served")
        self.large_has_records = holds_records(api_key.request)
        size = self._frames.large_size
        if not self.large_has_records and size > MAX_BYTES_WITHOUT_RECORDS:
            raise ProtocolError(
                f"{api_key.name} of {size} bytes, where at most {MAX_BYTES_WITHOUT_RECORDS} are taken without records"
            )

    def encode_response(self, request: Request[Message], response: Message, *, in_pieces: bool = False) -> list[Piece]:
        """Return the response with frame and header. Large records stay references; `in_pieces` as in `encode`."""
        api_key, version = request.api_key, request.api_version
        if version == BARE_TOKEN:
            assert isinstance(response, SaslAuthenticateResponse)
            return [struct.pack(">i", len(response.auth_bytes)) + response.auth_bytes]
        if not api_key.serves(version):
            response, version = _unsupported_version(api_key), 0
        pieces = encode(response, version, in_pieces=in_pieces)
        tagged_fields = b"\0" if version >= api_key.flexible_since and api_key is not ApiKey.API_VERSIONS else b""
        size = 4 + len(tagged_fields) + (len(pieces[0]) if len(pieces) == 1 else size_of(pieces))
        head = _FRAME_AND_CORRELATION.pack(size, request.correlation_id) + tagged_fields
        return _with_head(head, pieces)


class ClientConnection:
    """The client's end."""

    def __init__(self, client_id: str, spare: SpareBuffers | None = None) -> None:
        """`spare` is the memory of large responses, which connections may share."""
        raw = client_id.encode()
        if len(raw) > _MAX_CLIENT_ID_BYTES:
            raise ProtocolError("the client id is too long")
        self._client_id = struct.pack(">h", len(raw)) + raw
        self._frames = FrameBuffer(MAX_RESPONSE_BYTES, spare=spare or SpareBuffers())
        self._expected: deque[tuple[int, type[Message], int]] = deque()
        self._correlation_id = 0

    @property
    def expected(self) -> int:
        """Number of outstanding responses."""
        return len(self._expected)

    def encode_request(
        self, message: Message, version: int, *, expect_response: bool = True
    ) -> tuple[int, list[Piece]]:
        """Return the correlation id, and the request with frame and header. Produce with acks 0 expects no response."""
        pieces = encode(message, version)
        correlation_id = self._correlation_id
        tagged_fields = b"\0" if is_flexible(type(message), version) else b""
        head = struct.pack(">hhi", message.API_KEY, version, correlation_id) + self._client_id + tagged_fields
        head = struct.pack(">i", len(head) + size_of(pieces)) + head
        if expect_response:
            self._expected.append((correlation_id, API[message.API_KEY].response, version))
        self._correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        return correlation_id, _with_head(head, pieces)

    @property
    def due(self) -> int:
        """Bytes that the peer still has to send of the response under way; 1 if that is not known."""
        return self._frames.due

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into next. Take all responses first."""
        return self._frames.get_buffer()

    def bytes_received(self, count: int) -> None:
        """Note that `count` bytes were received into that buffer."""
        self._frames.bytes_received(count)

    def next_response(self) -> tuple[int, Message] | None:
        """Return the next response that has arrived whole, with its correlation id.

        Raises ProtocolError if it is not the response that is due. An ApiVersions response with error
        UNSUPPORTED_VERSION is in version 0, whatever version was asked for (KIP-511).
        """
        taken = self._frames.next_frame()
        if taken is None:
            return None
        frame, shared = taken
        if not self._expected or len(frame) < 4:
            raise ProtocolError("a response that nobody asked for")
        correlation_id, response, version = self._expected.popleft()
        (received_id,) = struct.unpack_from(">i", frame)
        if received_id != correlation_id:
            raise ProtocolError(f"a response to request {received_id}, where {correlation_id} is due")
        position = 4
        if response is ApiVersionsResponse:
            if frame[4:6] == struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION):
                version = 0
        elif is_flexible(response, version):
            position = _skip_tagged_fields(frame, position)
        body = frame[position:]
        if shared and holds_records(response):
            body = memoryview(bytearray(body))
        return correlation_id, decode(response, version, body)


def _client_id(frame: memoryview, size: int) -> tuple[str | None, int]:
    position = _REQUEST_HEADER.size
    if size < 0:
        return None, position
    end = position + size
    if end > len(frame):
        raise ProtocolError("a client id runs past the end of its request")
    try:
        return str(frame[position:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise ProtocolError("a client id is not UTF-8") from error


def _skip_tagged_fields(frame: memoryview, position: int) -> int:
    try:
        if not frame[position]:
            return position + 1
        count, position = read_uvarint(frame, position)
        if count > MAX_HEADER_TAGS:
            raise ProtocolError(f"a header with {count} tagged fields")
        for _ in range(count):
            _, position = read_uvarint(frame, position)
            size, position = read_uvarint(frame, position)
            position += size
    except IndexError as error:
        raise ProtocolError("a header is cut short") from error
    if position > len(frame):
        raise ProtocolError("a tagged field runs past the end of its header")
    return position


def _unsupported_version(api_key: ApiKey) -> ApiVersionsResponse:
    served = ApiVersion(api_key=api_key, min_version=api_key.min_version, max_version=api_key.max_version)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=(served,))


def _with_head(head: bytes, pieces: list[Piece]) -> list[Piece]:
    if pieces and isinstance(pieces[0], bytes) and len(pieces[0]) <= JOINED_BYTES:
        pieces[0] = head + pieces[0]
        return pieces
    return [head, *pieces]
