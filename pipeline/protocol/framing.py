"""Bytes off a socket to frames: a big-endian int32 length, then that many bytes.

Theory: the caller asks for a buffer, receives into it, says how much came, and takes frames until there are none.
Small frames are taken off one shared buffer; a frame that does not fit in there gets a buffer of its own, and is
received into it without being copied.

Invariants
  A. The shared buffer holds at most one frame that is incomplete, and it fits.
  B. A frame handed out with `shared` true is valid until the next `get_buffer`; one with `shared` false for ever.
  C. Memory follows bytes received, not the length that the peer claims: the buffer of a large frame starts with
     1 MiB at most and doubles as it fills.
"""

import struct

from pipeline.errors import ProtocolError

SHARED_BYTES = 64 * 1024
LARGE_FRAME_BYTES = 16 * 1024
"""An incomplete frame above this moves to a buffer of its own."""
FIRST_BYTES = 1024 * 1024

_LENGTH = struct.Struct(">i")


class FrameBuffer:
    """Splits what a peer sends into frames of at most `max_frame_bytes`."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._shared = memoryview(bytearray(SHARED_BYTES))
        self._start = 0
        self._end = 0
        self._own: bytearray | None = None
        self._own_size = 0
        self._own_filled = 0

    def get_buffer(self) -> memoryview:
        """Where to receive into. Never empty as long as all complete frames were taken."""
        if self._own is not None:
            if self._own_filled == len(self._own):
                self._grow(self._own)
            return memoryview(self._own)[self._own_filled :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start > SHARED_BYTES - LARGE_FRAME_BYTES - _LENGTH.size:
            waiting = bytes(self._shared[self._start : self._end])
            self._shared[: len(waiting)] = waiting
            self._start, self._end = 0, len(waiting)
        return self._shared[self._end :]

    def bytes_received(self, count: int) -> None:
        """So many bytes were received into the buffer that `get_buffer` gave last."""
        if self._own is not None:
            self._own_filled += count
        else:
            self._end += count

    def next_frame(self) -> tuple[memoryview, bool] | None:
        """The next complete frame, without its length, and whether it is shared (B). ProtocolError if oversized."""
        if self._own is not None:
            if self._own_filled < self._own_size:
                return None
            frame = memoryview(self._own)
            self._own = None
            return frame, False
        available = self._end - self._start - _LENGTH.size
        if available < 0:
            return None
        (size,) = _LENGTH.unpack_from(self._shared, self._start)
        if not 0 <= size <= self._max_frame_bytes:
            raise ProtocolError(f"a frame of {size} bytes, where at most {self._max_frame_bytes} are taken")
        first = self._start + _LENGTH.size
        if size <= available:
            self._start = first + size
            return self._shared[first : first + size], True
        if size > LARGE_FRAME_BYTES:
            self._own = bytearray(min(size, FIRST_BYTES))
            self._own_size = size
            self._own_filled = available
            self._own[:available] = self._shared[first : self._end]
            self._start = self._end = 0
        return None

    def _grow(self, filled: bytearray) -> None:
        grown = bytearray(min(self._own_size, 2 * len(filled)))
        grown[: len(filled)] = filled
        self._own = grown
