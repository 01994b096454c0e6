"""Counts of batches by time window, which audit and load report. Pure.

A batch belongs to the window of its base timestamp, the creation time of its first record, which no broker, mirror or
compaction ever rewrites. So every tier files a batch under the same window from its header alone (paper section 4).
"""

from dataclasses import dataclass
from typing import Self

from pipeline.records.batch import BatchHeader

DEFAULT_WINDOW_MS = 600_000
HOUR_MS = 3_600_000
CRC_SUM_MODULUS = 1 << 64


def window_start(timestamp_ms: int, window_ms: int) -> int:
    """Return the start of the window of `timestamp_ms`. Windows begin at multiples of `window_ms` since 1970 UTC."""
    return timestamp_ms - timestamp_ms % window_ms


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

    @classmethod
    def of(cls, header: BatchHeader) -> Self:
        """Return the counts of one batch, from its header."""
        return cls(header.record_count, header.size_bytes, 1, header.crc)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.records + other.records,
            self.bytes + other.bytes,
            self.batches + other.batches,
            (self.crc_sum + other.crc_sum) % CRC_SUM_MODULUS,
        )


NOTHING = Counts(0, 0, 0, 0)
