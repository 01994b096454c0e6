"""Windows and counts: what every tier counts, and by which rule.

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
    """Start of the window that holds `timestamp_ms`; windows begin at multiples of `window_ms` since 1970 UTC."""
    return timestamp_ms - timestamp_ms % window_ms


def is_audited(topic: str) -> bool:
    """Internal topics (`_...`) are not counted: the audit's own reports would never come to rest."""
    return not topic.startswith("_")


@dataclass(frozen=True, slots=True)
class Counts:
    """How much a tier handled.

    `crc_sum` is the sum of the batches' CRC-32C modulo 2**64. It does not depend on order, so equal sums over equal
    numbers of records mean equal data, while one batch lost and another doubled no longer look perfect.
    """

    records: int = 0
    bytes: int = 0
    batches: int = 0
    crc_sum: int = 0

    @classmethod
    def of(cls, header: BatchHeader) -> Self:
        """The counts of one batch, from its header."""
        return cls(header.record_count, header.size_bytes, 1, header.crc)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.records + other.records,
            self.bytes + other.bytes,
            self.batches + other.batches,
            (self.crc_sum + other.crc_sum) % CRC_SUM_MODULUS,
        )


NOTHING = Counts()
