"""Figures of performance tests: amounts, rates, and quantiles of latencies. Pure."""

import math
from dataclasses import dataclass, field

MB = 1 << 20
"""Bytes of a MB, as Kafka's performance tests count."""
BUCKET_S = 0.0001
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


@dataclass(slots=True)
class Latencies:
    """Latencies in seconds, counted in buckets of 0.1 ms: memory does not grow with their number."""

    count: int = 0
    sum_s: float = 0.0
    max_s: float = 0.0
    _buckets: dict[int, int] = field(default_factory=dict)

    def add(self, latency_s: float) -> None:
        """Count a latency."""
        self.count += 1
        self.sum_s += latency_s
        self.max_s = max(self.max_s, latency_s)
        bucket = int(latency_s / BUCKET_S)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def quantile_s(self, share: float) -> float:
        """Return the latency that this share of all does not exceed, rounded up to 0.1 ms. At least one is counted."""
        wanted = math.ceil(share * self.count)
        for bucket in sorted(self._buckets):
            wanted -= self._buckets[bucket]
            if wanted <= 0:
                return min((bucket + 1) * BUCKET_S, self.max_s)
        return self.max_s

    def to_json(self) -> dict[str, float] | None:
        """Return average, maximum and quantiles in ms; None without any."""
        if not self.count:
            return None
        found = {"avg": self.sum_s / self.count, "max": self.max_s}
        found |= {name: self.quantile_s(share) for name, share in QUANTILES.items()}
        return {name: round(latency_s * 1000, 1) for name, latency_s in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Records and their bytes, and the time that they took."""

    records: int
    bytes: int
    seconds: float

    def to_json(self) -> dict[str, float | None]:
        """Return amounts and rates as `--json` prints them. Rates are None if no time went by."""
        has_rate = self.seconds > 0
        return {
            "records": self.records,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self.records / self.seconds, 1) if has_rate else None,
            "mb_per_s": round(self.bytes / MB / self.seconds, 3) if has_rate else None,
        }

    def __str__(self) -> str:
        """The figures in a line for people."""
        told = f"{self.records} records, {self.bytes} bytes, in {self.seconds:.3f} s"
        if self.seconds > 0:
            told += f": {self.records / self.seconds:.0f} records/s, {self.bytes / MB / self.seconds:.2f} MB/s"
        return told
