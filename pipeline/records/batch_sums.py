"""Sums over batches, by which two copies of a log are compared without sending their records. Pure.

Invariants:

- A sum depends neither on the order of the batches nor on where a range was split: sums of parts add up.
- The leader epoch does not count, since each cluster has its own. Of sums over headers every other byte of the header
  does: the CRC-32C in it stands for the records, and base offset and length, which the CRC does not cover, stand for
  themselves.
- Of sums over contents, the CRC-32C and the size of the plain records stand for the records, in any codec. A batch that
  cannot be opened counts with its whole header, so it equals its own copy alone.
- Equal sums are strong evidence of equal batches, not a proof: the digest has 63 bits, the CRC 32.
- `add_headers` adds what `add`, `add_frame` and `add_contents` add, of many batches at once.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader
from pipeline.records.raw_headers import RawHeaders, octets_of

NO_OFFSET = -1
_DIGEST_BYTES = 8
_MODULUS = 1 << 63
_EPOCH_START = 12
_EPOCH_END = 16
_CODEC_MASK = 0x07
_FRAME = struct.Struct(">qhiqqqhii")
_PLAIN = struct.Struct(">qI")
PLAIN_ROW: Final = np.dtype([("size_bytes", ">i8"), ("crc", ">u4")])
"""Size and CRC-32C of plain records, as a digest covers them."""
_OCTETS_OF_OFFSET = 8
_ATTRIBUTES = 21


class SumKind(IntEnum):
    """Parts of the batches that a digest covers."""

    HEADERS = 0
    FRAMES = 1
    """Headers without what depends on the codec: equal if batches differ in their codecs alone."""
    CONTENTS = 2
    """Frames and plain records: each batch is read and opened."""


class PlainSum(NamedTuple):
    """Size and CRC-32C of the plain records of a batch."""

    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSums:
    """Sums over consecutive batches.

    `size_bytes` counts headers and records: as they are, of sums over FRAMES nothing, over CONTENTS uncompressed.
    """

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    digest: int = 0
    """Sum of a hash of each batch, modulo 2**63, which fits in Kafka's int64."""
    first_offset: int = NO_OFFSET
    """Base offset of the first batch."""
    last_offset: int = NO_OFFSET
    """Last offset of the last batch."""
    damaged_batches: int = 0
    """Batches with a wrong checksum, if the checksums were computed."""
    damaged_offset: int = NO_OFFSET
    """Base offset of the first of them."""

    def __add__(self, later: "BatchSums") -> "BatchSums":
        """Return the sums over these batches and later ones."""
        return BatchSums(
            batches=self.batches + later.batches,
            records=self.records + later.records,
            size_bytes=self.size_bytes + later.size_bytes,
            digest=(self.digest + later.digest) % _MODULUS,
            first_offset=self.first_offset if self.batches else later.first_offset,
            last_offset=later.last_offset if later.batches else self.last_offset,
            damaged_batches=self.damaged_batches + later.damaged_batches,
            damaged_offset=self.damaged_offset if self.damaged_batches else later.damaged_offset,
        )

    def is_equal_to(self, other: "BatchSums") -> bool:
        """True if both are sums over the same batches."""
        return (self.batches, self.records, self.size_bytes, self.digest) == (
            other.batches,
            other.records,
            other.size_bytes,
            other.digest,
        )


NO_BATCHES = BatchSums()


@dataclass(slots=True)
class RunningSums:
    """Sums that grow batch by batch, in the order of offsets."""

    _batches: int = 0
    _records: int = 0
    _size_bytes: int = 0
    _digest: int = 0
    _first_offset: int = NO_OFFSET
    _last_offset: int = NO_OFFSET
    _damaged_batches: int = 0
    _damaged_offset: int = NO_OFFSET

    def add(self, raw: bytes | memoryview, header: BatchHeader) -> None:
        """Add a batch by its header: its bytes, and the same decoded."""
        self._add(header, header.size_bytes, digest_of(raw))

    def add_frame(self, header: BatchHeader) -> None:
        """Add a batch by its frame."""
        self._add(header, 0, _hash(frame_of(header)))

    def add_contents(self, raw: bytes | memoryview, header: BatchHeader, plain: PlainSum | None) -> None:
        """Add a batch by its contents; `plain` is None if it cannot be opened."""
        if plain is None:
            self.add(raw, header)
        else:
            digest = _hash(frame_of(header) + _PLAIN.pack(plain.size_bytes, plain.crc))
            self._add(header, HEADER_SIZE + plain.size_bytes, digest)

    def add_headers(self, headers: RawHeaders, kind: SumKind, plain: NDArray[np.void] | None = None) -> None:
        """Add batches by their headers. Sums over CONTENTS take `plain`: a row of PLAIN_ROW for each batch."""
        if not len(headers):
            return
        if not self._batches:
            self._first_offset = int(headers[0]["base_offset"])
        self._last_offset = int(headers[-1]["base_offset"]) + int(headers[-1]["last_offset_delta"])
        self._batches += len(headers)
        self._records += int(headers["record_count"].sum(dtype=np.int64))
        octets = octets_of(headers)
        if kind is SumKind.HEADERS:
            self._size_bytes += int(headers["batch_length"].sum(dtype=np.int64)) + LOG_OVERHEAD * len(headers)
            kept = [octets[:, :_EPOCH_START], octets[:, _EPOCH_END:]]
        else:
            attributes = octets[:, _ATTRIBUTES : _ATTRIBUTES + 2] & np.array([0xFF, 0xFF & ~_CODEC_MASK], np.uint8)
            kept = [octets[:, :_OCTETS_OF_OFFSET], attributes, octets[:, _ATTRIBUTES + 2 :]]
            if plain is not None:
                self._size_bytes += HEADER_SIZE * len(headers) + int(plain["size_bytes"].sum(dtype=np.int64))
                kept.append(plain.view(np.uint8).reshape(len(plain), PLAIN_ROW.itemsize))
        self._digest += _sum_of_hashes(np.concatenate(kept, axis=1))

    def _add(self, header: BatchHeader, size_bytes: int, digest: int) -> None:
        if not self._batches:
            self._first_offset = header.base_offset
        self._batches += 1
        self._records += header.record_count
        self._size_bytes += size_bytes
        self._digest += digest
        self._last_offset = header.last_offset

    def note_damaged(self, base_offset: int) -> None:
        """Count a batch whose checksum is wrong."""
        if not self._damaged_batches:
            self._damaged_offset = base_offset
        self._damaged_batches += 1

    def total(self) -> BatchSums:
        """Return the sums so far."""
        return BatchSums(
            batches=self._batches,
            records=self._records,
            size_bytes=self._size_bytes,
            digest=self._digest % _MODULUS,
            first_offset=self._first_offset,
            last_offset=self._last_offset,
            damaged_batches=self._damaged_batches,
            damaged_offset=self._damaged_offset,
        )


def frame_of(header: BatchHeader) -> bytes:
    """Return the fields of a header that neither depend on the codec nor, like the leader epoch, on the cluster."""
    return _FRAME.pack(
        header.base_offset,
        header.attributes & ~_CODEC_MASK,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )


def digest_of(raw: bytes | memoryview) -> int:
    """Return the hash of a header, given as its bytes, without the leader epoch."""
    kept = bytes(raw[:_EPOCH_START]) + bytes(raw[_EPOCH_END:HEADER_SIZE])
    return _hash(kept)


def _hash(kept: bytes) -> int:
    return int.from_bytes(blake2b(kept, digest_size=_DIGEST_BYTES).digest(), "big")


def _sum_of_hashes(rows: NDArray[np.uint8]) -> int:
    """Return the sum of the hashes of the rows, modulo 2**64."""
    digests = []
    copy = blake2b(digest_size=_DIGEST_BYTES).copy  # to copy an empty hash takes less than to make one
    for row in rows.view(f"V{rows.shape[1]}").ravel().tolist():
        each = copy()
        each.update(row)
        digests.append(each.digest())
    return int(np.frombuffer(b"".join(digests), ">u8").sum(dtype=np.uint64))
