"""Splits received bytes into frames: a big-endian int32 length, then that many bytes.

Theory: the caller gets a buffer, receives into it, reports how many bytes came, and takes frames until there are none.
Small frames lie in one receive buffer, which many connections may share. A frame that does not fit into that buffer
gets its own, and is received into it without being copied.

Invariants
  A. The receive buffer holds at most one incomplete frame, which fits. Before another connection uses the buffer,
     `park` copies the incomplete frame out: a connection with nothing under way holds no memory.
  B. A frame handed out with `shared` true is valid until the next `get_buffer` of any machine that shares the buffer;
     one with `shared` false for ever.
  C. Memory follows bytes received, not the length that the peer claims: once 4 KiB of a large frame have come, it gets
     its own buffer of 16 times that, at most 1 MiB, which doubles when it is full. `growth` says beforehand by how much
     the next `get_buffer` lets it grow, so that a caller can wait until there is memory for it.
  D. A machine with `spare` buffers has one of them for a large frame; no buffer grows. Its memory follows bytes
     received, too. This is for clients, which asked for the frame, and not for servers: these wait for memory.
"""

import struct

from pipeline.errors import ProtocolError
from pipeline.protocol.spare_buffers import SpareBuffers

SHARED_BYTES = 64 * 1024
FIRST_BYTES = 1024 * 1024
FIRST_FACTOR = 16
LEAST_ARRIVED_BYTES = 4 * 1024
"""Received bytes from which on a large frame has its own buffer."""

_HTTP = int.from_bytes(b"HTTP")
"""First bytes of an answer of an HTTP server, taken for the length of a frame."""
_HTTP_REQUESTS = frozenset(map(int.from_bytes, (b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"PRI ")))
_TLS = int.from_bytes(b"\x16\x03\x01")
"""First bytes of a client's greeting in TLS, before its length."""
_LENGTH = struct.Struct(">i")
LARGEST_SHARED_BYTES = SHARED_BYTES - _LENGTH.size
"""Size of the largest frame that fits into the receive buffer; a frame above it is large."""


def receive_buffer() -> memoryview:
    """Return a buffer to receive into, for any number of machines that never wait between receiving and `park`."""
    return memoryview(bytearray(SHARED_BYTES))


class FrameBuffer:
    """Splits the bytes of a peer into frames of at most `max_frame_bytes`."""

    __slots__ = (
        "_buffer",
        "_end",
        "_large",
        "_large_filled",
        "_large_granted",
        "_large_size",
        "_shared",
        "_spare",
        "_start",
        "_target",
        "max_frame_bytes",
        "received_bytes",
    )

    def __init__(
        self, max_frame_bytes: int, shared: memoryview | None = None, *, spare: SpareBuffers | None = None
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._spare = spare
        self._shared = receive_buffer() if shared is None else shared
        self._buffer = self._shared
        self._start = 0
        self._end = 0
        self._large: bytearray | memoryview | None = None
        self._large_granted = 0
        self._large_size = 0
        self._large_filled = 0
        self._target: memoryview | None = None
        self.received_bytes = 0

    @property
    def growth(self) -> int:
        """Bytes that the next `get_buffer` takes for a large frame; 0 if it needs none."""
        if not self._large_size:
            return 0
        if self._large is None:
            return min(self._large_size, FIRST_BYTES, FIRST_FACTOR * (self._end - self._start))
        if self._large_filled < self._large_granted:
            return 0
        return min(self._large_size - self._large_granted, self._large_granted)

    @property
    def large_start(self) -> memoryview | None:
        """Received bytes (4 KiB or more) of a large frame without its own buffer, until `get_buffer`; else None."""
        if not self._large_size or self._large is not None:
            return None
        return self._buffer[self._start : self._end]

    @property
    def large_size(self) -> int:
        """Length of the large frame under way; 0 if there is none."""
        return self._large_size

    @property
    def due(self) -> int:
        """Bytes that the peer still has to send of the frame under way; 1 if that is not known."""
        return max(1, self._large_size - self._large_filled) if self._large is not None else 1

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into, never empty once all complete frames were taken."""
        if self._large_size:
            self._target = memoryview(self._grown())[self._large_filled : self._large_granted]
            return self._target
        if self._start == self._end:
            self._start = self._end = 0
            self._buffer = self._shared
        elif self._start or self._buffer is not self._shared:
            self._move(self._shared)
        return self._buffer[self._end :]

    def bytes_received(self, count: int) -> None:
        """Note that `count` bytes were received into the buffer that `get_buffer` gave last."""
        self.received_bytes += count
        if self._large_size:
            self._large_filled += count
        else:
            self._end += count

    def next_frame(self) -> tuple[memoryview, bool] | None:
        """Return the next complete frame without its length, and True if it is shared (B). Raises ProtocolError."""
        if self._large_size:
            if self._large is None or self._large_filled < self._large_size:
                return None
            frame = memoryview(self._large)
            self._large, self._large_size, self._target = None, 0, None
            return frame, False
        available = self._end - self._start - _LENGTH.size
        if available < 0:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer, self._start)
        if not 0 <= size <= self.max_frame_bytes:
            if size == _HTTP:
                raise ProtocolError(
                    "the other side speaks HTTP, not Kafka's protocol: it is the port of something else"
                )
            if size in _HTTP_REQUESTS:
                raise ProtocolError("the client speaks HTTP, not Kafka's protocol: http.listen is the port for that")
            if size >> 8 == _TLS:
                raise ProtocolError("the client begins TLS, which this listener does not speak")
            raise ProtocolError(f"a frame of {size} bytes, where at most {self.max_frame_bytes} are taken")
        first = self._start + _LENGTH.size
        if size <= available:
            self._start = first + size
            return self._buffer[first : first + size], True
        if size > LARGEST_SHARED_BYTES and available >= LEAST_ARRIVED_BYTES:
            self._large_size = size
            self._start = first
        return None

    def park(self) -> None:
        """Leave the receive buffer to others: copy the incomplete frame in it to memory of our own."""
        if self._buffer is self._shared and self._start != self._end:
            self._move(memoryview(bytearray(self._end - self._start)))
        elif self._start == self._end:
            self._buffer = self._shared
            self._start = self._end = 0

    def _move(self, target: memoryview) -> None:
        waiting = bytes(self._buffer[self._start : self._end])
        target[: len(waiting)] = waiting
        self._buffer, self._start, self._end = target, 0, len(waiting)

    def _grown(self) -> bytearray | memoryview:
        growth = self.growth
        if self._large is None:
            if self._spare is not None:
                self._large, self._large_granted = self._spare.take(self._large_size), self._large_size
            else:
                self._large, self._large_granted = bytearray(growth), growth
            self._large_filled = self._end - self._start
            self._large[: self._large_filled] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = self._shared, 0, 0
        elif growth and isinstance(self._large, bytearray):
            self._large_granted += growth
            if self._target is not None:
                self._target.release()
            self._large += bytes(growth)
        return self._large
