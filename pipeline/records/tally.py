"""Counts of batches by time window, which audit and load report. Pure.

A batch belongs to the window of its base timestamp, the creation time of its first record, which no broker, mirror or
compaction ever rewrites. So every tier files a batch under the same window from its header alone (paper section 4).
"""

from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

from pipeline.records.batch import BatchHeader
from pipeline.records.batch_hashes import header_hash_of
from pipeline.records.compression import Codec

DEFAULT_WINDOW_MS = 600_000
HOUR_MS = 3_600_000
CRC_SUM_MODULUS = 1 << 64


MAX_TIMESTAMP_MS = 1 << 60
MIN_TIMESTAMP_MS = -MAX_TIMESTAMP_MS
"""Bounds of the times that have windows of their own; a batch beyond them is filed under the nearest."""


def window_start(timestamp_ms: int, window_ms: int) -> int:
    """Return the start of the window of `timestamp_ms`. Windows begin at multiples of `window_ms` since 1970 UTC."""
    timestamp_ms = min(max(timestamp_ms, MIN_TIMESTAMP_MS), MAX_TIMESTAMP_MS)
    return timestamp_ms - timestamp_ms % window_ms


class CodecCounts(NamedTuple):
    """Number of batches by codec, and what recompression leaves as it was.

    `header_sum` is the sum, modulo 2**64, of a CRC-32C of those fields of each header that neither brokers nor
    recompression change: number of records, base timestamp, producer and sequence number.
    """

    header_sum: int
    batches: tuple[int, ...]

    def with_batch(self, header: BatchHeader) -> "CodecCounts | None":
        """Return the counts with one batch more; None for a codec that Kafka does not know."""
        number, batches = header.attributes & 0x07, self.batches
        if number >= len(batches):
            return None
        total = (self.header_sum + header_hash_of(header)) % CRC_SUM_MODULUS
        return CodecCounts(total, (*batches[:number], batches[number] + 1, *batches[number + 1 :]))

    def plus(self, other: "CodecCounts | None") -> "CodecCounts | None":
        """Return the counts of both; None if one is not known."""
        if other is None:
            return None
        total = (self.header_sum + other.header_sum) % CRC_SUM_MODULUS
        return CodecCounts(total, tuple(map(add, self.batches, other.batches)))


@dataclass(frozen=True, slots=True)
class Counts:
    """Amount of data that a tier handled.

    `crc_sum` is the sum of the batches' CRC-32C modulo 2**64. It does not depend on order, and changes if one batch is
    lost while another one of equal size is doubled. Equal counts are strong evidence of equal data, not a proof.
    """

    records: int
    bytes: int
    batches: int
    crc_sum: int
    codecs: CodecCounts | None = field(default=None, compare=False)
    """None if not counted: by loads, and by programs of before these counts."""

    def with_batch(self, header: BatchHeader) -> "Counts":
        """Return the counts with one batch more, by its header."""
        return Counts(
            self.records + header.record_count,
            self.bytes + header.size_bytes,
            self.batches + 1,
            (self.crc_sum + header.crc) % CRC_SUM_MODULUS,
            None if self.codecs is None else self.codecs.with_batch(header),
        )

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.records + other.records,
            self.bytes + other.bytes,
            self.batches + other.batches,
            (self.crc_sum + other.crc_sum) % CRC_SUM_MODULUS,
            None if self.codecs is None else self.codecs.plus(other.codecs),
        )


NOTHING = Counts(0, 0, 0, 0, CodecCounts(0, (0,) * len(Codec)))
