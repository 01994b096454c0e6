"""Latencies as mergeable sketches: quantiles with a relative error of ACCURACY (DDSketch, by its library). Pure.

Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019.

Invariants:

A. A sketch is its buckets: pairs of a key and a number of records. Equal latencies have equal keys in every process, so
   merged sketches do not depend on order, nor on which process counted what.
B. Latencies are whole milliseconds from 1 to MAX_LATENCY_MS, and others count as the nearest. A record from
   the future counts as 1 ms. So the number of buckets is bounded, and foreign buckets cannot make a sketch larger.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np
from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import DenseStore
from numpy.typing import ArrayLike, NDArray

ACCURACY: Final = 0.02
MAX_LATENCY_MS: Final = 1 << 42
"""139 years."""

Buckets = Sequence[tuple[int, int]]


class LatencySketch:
    """Distribution of latencies, weighted with records."""

    def __init__(self) -> None:
        self._store = DenseStore()
        self._sketch = BaseDDSketch(_mapping(), self._store, DenseStore(), 0.0)

    def add(self, latencies_ms: ArrayLike, records: ArrayLike) -> None:
        """Add latencies, each with the number of records that have it. Each bucket that occurs is added once."""
        self.add_keys(latency_keys(latencies_ms), np.asarray(records, np.int64))

    def add_keys(self, keys: NDArray[np.int64], records: NDArray[np.int64]) -> None:
        """Add buckets, which may come several times, with their records."""
        weights = np.bincount(keys, weights=records)
        for key in np.flatnonzero(weights > 0).tolist():
            self._sketch.add(_mapping().value(key), float(weights[key]))

    def add_buckets(self, buckets: Buckets) -> None:
        """Add the buckets of another sketch, of this process or another one."""
        if buckets:
            keys, records = (np.array(column) for column in zip(*buckets, strict=True))
            kept = records > 0
            self.add_keys(np.clip(keys[kept], 0, max_key()), records[kept])

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """Return (key, number of records) of each bucket that is not empty, sorted by key."""
        found = self._store.bins
        return tuple((self._store.offset + at, round(count)) for at, count in enumerate(found) if count)

    @property
    def records(self) -> int:
        """Number of records."""
        return int(self._sketch.count)

    def quantile_ms(self, share: float) -> float | None:
        """Return the latency that the share, from 0 to 1, of the records do not exceed; None without records."""
        found = self._sketch.get_quantile_value(share)
        return None if found is None else float(found)


def merged(sketches: Iterable[Buckets]) -> LatencySketch:
    """Return the sketch of all records of several ones, given as their buckets."""
    whole = LatencySketch()
    for buckets in sketches:
        whole.add_buckets(buckets)
    return whole


def quantiles_ms(sketches: Iterable[Buckets], shares: Sequence[float] = (0.5, 0.95, 0.99)) -> Mapping[float, float]:
    """Return by share the latency in ms that so many of the records do not exceed; empty without records."""
    whole = merged(sketches)
    found = {share: whole.quantile_ms(share) for share in shares}
    return {share: latency for share, latency in found.items() if latency is not None}


def latency_keys(latencies_ms: ArrayLike) -> NDArray[np.int64]:
    """Return the key of the bucket of each latency."""
    whole = np.clip(np.asarray(latencies_ms, np.int64), 1, MAX_LATENCY_MS)
    return np.searchsorted(_upper_bounds(), whole).astype(np.int64)


def max_key() -> int:
    """Return the highest key that a bucket may have."""
    return len(_upper_bounds()) - 1


@cache
def _mapping() -> LogarithmicMapping:
    return LogarithmicMapping(ACCURACY)


@cache
def _upper_bounds() -> NDArray[np.int64]:
    """Return the highest whole latency of each bucket; equal ones belong to the first bucket."""
    gamma = _mapping().gamma
    keys = range(_mapping().key(MAX_LATENCY_MS) + 1)
    return np.array([min(int(gamma**key), MAX_LATENCY_MS) for key in keys[:-1]] + [MAX_LATENCY_MS], np.int64)
