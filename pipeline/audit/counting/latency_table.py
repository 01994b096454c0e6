"""Latencies of many topics by window, cumulative in this process and in bounded memory. Pure.

Invariants:

A. Only the newest windows of a topic are kept; a window that was forgotten never comes back. What older records took is
   of no interest, and their number has no bound.
B. Added latencies wait as arrays until they are merged, at most MAX_WAITING of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.counting.latency import latency_keys

WINDOWS_KEPT_BY_TOPIC: Final = 4
MAX_WAITING: Final = 16_384

_Numbers = NDArray[np.int64]


class TopicWindow(NamedTuple):
    """A window of a topic, which has a number here."""

    topic: int
    start_ms: int


@dataclass(slots=True)
class _TopicLatencies:
    """Records by key of the bucket, by window."""

    windows: dict[int, dict[int, int]] = field(default_factory=dict)
    closed_before: int = -(2**63)


class LatencyTable:
    """Buckets of latencies by topic and window, and a note of the windows that changed since they were last taken."""

    def __init__(self) -> None:
        self._topics: dict[int, _TopicLatencies] = {}
        self._changed: set[TopicWindow] = set()
        self._waiting: list[tuple[_Numbers, _Numbers, _Numbers, _Numbers]] = []
        self._waiting_size = 0

    def add(self, topics: _Numbers, starts_ms: _Numbers, latencies_ms: _Numbers, records: _Numbers) -> None:
        """Add latencies, each of so many records of a window of a topic."""
        self._waiting.append((topics, starts_ms, latency_keys(latencies_ms), records))
        self._waiting_size += len(topics)
        if self._waiting_size > MAX_WAITING:
            self._merge()

    def take_changed(self) -> list[tuple[TopicWindow, tuple[tuple[int, int], ...]]]:
        """Return the buckets of the changed windows, which count as unchanged from now on."""
        self._merge()
        changed, self._changed = sorted(self._changed), set()
        return [
            (window, tuple(sorted(self._topics[window.topic].windows[window.start_ms].items()))) for window in changed
        ]

    def mark_changed(self, windows: Iterable[TopicWindow]) -> None:
        """Note that these windows, if they are still there, are to be taken again."""
        for window in windows:
            topic = self._topics.get(window.topic)
            if topic is not None and window.start_ms in topic.windows:
                self._changed.add(window)

    def discard(self, topic: int) -> None:
        """Forget a topic."""
        self._merge()
        self._topics.pop(topic, None)
        self._changed = {window for window in self._changed if window.topic != topic}

    def _merge(self) -> None:
        if not self._waiting:
            return
        topics, starts, keys, records = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting, self._waiting_size = [], 0
        order = np.lexsort((keys, starts, topics))
        topics, starts, keys, records = topics[order], starts[order], keys[order], records[order]
        is_new = np.ones(len(topics), np.bool_)
        is_new[1:] = (topics[1:] != topics[:-1]) | (starts[1:] != starts[:-1]) | (keys[1:] != keys[:-1])
        at = np.flatnonzero(is_new)
        sums = np.add.reduceat(records, at) if len(at) else records
        for topic, start, key, count in zip(
            topics[at].tolist(), starts[at].tolist(), keys[at].tolist(), sums.tolist(), strict=True
        ):
            buckets = self._window(topic, start)
            if buckets is not None and count > 0:
                buckets[key] = buckets.get(key, 0) + count
                self._changed.add(TopicWindow(topic, start))

    def _window(self, topic: int, start_ms: int) -> dict[int, int] | None:
        """Return the buckets of a window; None if it is too old (invariant A)."""
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _TopicLatencies()
        buckets = found.windows.get(start_ms)
        if buckets is None and start_ms >= found.closed_before:
            buckets = found.windows[start_ms] = {}
            if len(found.windows) > WINDOWS_KEPT_BY_TOPIC:
                oldest = min(found.windows)
                del found.windows[oldest]
                self._changed.discard(TopicWindow(topic, oldest))
                found.closed_before = oldest + 1
                buckets = found.windows.get(start_ms)
        return buckets
