"""Batches of a log that are gathered one by one, as cheaply as can be, and added to sums many at once.

Invariants:

- Only batches that follow each other as they should are gathered. Their headers are checked when they are added, and
  of those from the first impossible one on none is added.
- `next_offset` is the offset after the last batch that was added; the gathered ones lie behind it.
"""

import struct
from pathlib import Path
from typing import Final

import numpy as np
from crc32c import crc32c

from pipeline.errors import CorruptBatchError
from pipeline.log.batch_places import damage
from pipeline.records.batch import CHECKED_FROM, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, read_header
from pipeline.records.batch_sums import PLAIN_ROW, RunningSums, SumKind
from pipeline.records.raw_headers import impossible, raw_headers

WHOLE_BYTES: Final = 64 * 1024
"""Batches of at most this size are read together with their neighbours where they are read at all."""
_START: Final = struct.Struct(">qi9xhi")
"""The first bytes of a batch: base offset, length, attributes, last offset delta."""
_CODEC_MASK: Final = 0x07


class GatheredBatches:
    """Sums over batches, and batches that are to be added to them. `reads`: their records are read."""

    def __init__(self, kind: SumKind, next_offset: int, *, reads: bool) -> None:
        self.kind = kind
        self.reads = reads
        self.next_offset = next_offset
        self.sums = RunningSums()
        self._path = Path()
        self._position = 0
        """Position of the first gathered batch in the file of `_path`; they lie there one after the other."""
        self._headers: list[bytes] = []
        self._crcs: list[int] = []
        """Computed checksums, if records are read."""
        self._plain: list[tuple[int, int]] = []
        """Rows of PLAIN_ROW, of sums over contents."""
        self._end_offset = next_offset

    def __len__(self) -> int:
        """Number of the gathered batches."""
        return len(self._headers)

    def enter(self, path: Path, position: int) -> None:
        """Note where the next batch lies. Nothing is gathered now."""
        self._path, self._position = path, position
        self._end_offset = self.next_offset

    def gather(self, chunk: bytes, at: int, before_offset: int, end: int, room: int) -> tuple[int, int]:
        """Gather batches of a chunk from `at` on, as long as they are as expected, and at most `room`.

        Their last offsets lie before `before_offset`, and they end at `end` of the chunk or before. Return the
        place in the chunk after the last of them, and their number.
        """
        unpack, next_offset, reads = _START.unpack_from, self._end_offset, self.reads
        is_of_contents = self.kind is SumKind.CONTENTS
        note_header, note_crc = self._headers.append, self._crcs.append
        view = memoryview(chunk)
        last_start = len(chunk) - HEADER_SIZE
        longest = end
        if reads:
            end = min(end, len(chunk))
            longest = WHOLE_BYTES
        count = 0
        while at <= last_start and count < room:
            base_offset, length, attributes, delta = unpack(chunk, at)
            size_bytes = length + LOG_OVERHEAD
            last_offset, following = base_offset + delta, at + size_bytes
            if (
                base_offset < next_offset
                or delta < 0
                or last_offset >= before_offset
                or not HEADER_SIZE <= size_bytes <= longest
                or following > end
            ):
                break
            if is_of_contents:
                if attributes & _CODEC_MASK:
                    break
                plain = view[at + HEADER_SIZE : following]
                note_crc(crc32c(plain, crc32c(view[at + CHECKED_FROM : at + HEADER_SIZE])))
                self._plain.append((len(plain), crc32c(plain)))
            elif reads:
                note_crc(crc32c(view[at + CHECKED_FROM : following]))
            note_header(chunk[at : at + HEADER_SIZE])
            next_offset, at = last_offset + 1, following
            count += 1
        self._end_offset = next_offset
        return at, count

    def add_one(self, raw: memoryview, header: BatchHeader) -> None:
        """Add a batch by its header, whose records are not read."""
        if self.kind is SumKind.FRAMES:
            self.sums.add_frame(header)
        else:
            self.sums.add(raw, header)

    def settle(self) -> None:
        """Add what was gathered to the sums. Raises DamagedSegmentError at the first header that cannot be."""
        if not self._headers:
            return
        headers = raw_headers(b"".join(self._headers))
        crcs, plain = np.array(self._crcs, np.uint32), None
        if self.kind is SumKind.CONTENTS:
            plain = np.array(self._plain, PLAIN_ROW)
        wrong = np.flatnonzero(impossible(headers))
        sound = int(wrong[0]) if len(wrong) else len(headers)
        added = headers[:sound]
        self.sums.add_headers(added, self.kind, None if plain is None else plain[:sound])
        if self.reads:
            for number in np.flatnonzero(added["crc"] != crcs[:sound]).tolist():
                self.sums.note_damaged(int(added[number]["base_offset"]))
        if sound:
            self.next_offset = int(added[-1]["base_offset"]) + int(added[-1]["last_offset_delta"]) + 1
        raw = b"" if sound == len(headers) else self._headers[sound]
        self._headers, self._crcs, self._plain = [], [], []
        self._position += int(added["batch_length"].sum(dtype=np.int64)) + LOG_OVERHEAD * sound
        if raw:
            raise damage(self._path, _reason(raw), self._position)


def _reason(raw: bytes) -> str:
    """Return why a header is impossible."""
    try:
        read_header(raw)
    except CorruptBatchError as error:
        return error.reason
    return "its header is impossible"
