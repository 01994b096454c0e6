"""Sums over the headers of batches, by which two copies of a log are compared without their records. Pure.

Invariants:

- A sum depends neither on the order of the batches nor on where a range was split: sums of parts add up.
- The leader epoch does not count, since each cluster has its own. Every other byte of the header does: the CRC-32C in
  it stands for the records, and base offset and length, which the CRC does not cover, stand for themselves.
- Equal sums are strong evidence of equal batches, not a proof: the digest has 63 bits, the CRC 32.
"""

from dataclasses import dataclass
from hashlib import blake2b

from pipeline.records.batch import HEADER_SIZE, BatchHeader

NO_OFFSET = -1
_DIGEST_BYTES = 8
_MODULUS = 1 << 63
_EPOCH_START = 12
_EPOCH_END = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSums:
    """Sums over consecutive batches. `size_bytes` counts headers and records."""

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    digest: int = 0
    """Sum of a hash of each header without its leader epoch, modulo 2**63, which fits in Kafka's int64."""
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
        if not self._batches:
            self._first_offset = header.base_offset
        self._batches += 1
        self._records += header.record_count
        self._size_bytes += header.size_bytes
        self._digest += digest_of(raw)
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


def digest_of(raw: bytes | memoryview) -> int:
    """Return the hash of a header, given as its bytes, without the leader epoch."""
    kept = bytes(raw[:_EPOCH_START]) + bytes(raw[_EPOCH_END:HEADER_SIZE])
    return int.from_bytes(blake2b(kept, digest_size=_DIGEST_BYTES).digest(), "big")
