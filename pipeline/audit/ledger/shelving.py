"""Shelves for the rows of hours that nobody reports any more: a file, for the ledger only bytes at places. Pure.

A shelf is no truth of its own: what it holds came from the audit topics, and is forgotten with the process.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.events.report import Rows
from pipeline.audit.ledger.keys import LIFE_BITS, PARTITION_BITS, Int64s

KEY_BYTES = 8
ROWS_AT_ONCE: Final = 4_096
"""Rows that are sorted at a time on their way to a shelf: an hour of all partitions has 15 MB of rows."""


class Shelf(Protocol):
    """Bytes that are kept out of memory."""

    def put(self, data: bytes | memoryview) -> int | None:
        """Keep bytes; return their place. None if they cannot be kept."""

    def put_parts(self, parts: Iterable[bytes | memoryview], size: int) -> int | None:
        """Keep parts of `size` bytes in all, one after the other; return their place. None if they cannot be kept."""

    def get(self, place: int, size: int) -> bytes:
        """Return bytes that were kept. Raises PipelineError."""

    def drop(self, place: int, size: int) -> None:
        """Forget bytes that were kept."""


@dataclass(frozen=True, slots=True)
class TopicIndex:
    """Topics of shelved rows, sorted, and the number of the first row of each. Tables may share one."""

    topics: Int64s
    starts: Int64s

    @classmethod
    def of(cls, keys: Int64s, known: "TopicIndex | None") -> "TopicIndex":
        """Return the index of sorted keys: the known one, if it is equal."""
        topics = keys >> (PARTITION_BITS + LIFE_BITS)
        starts = np.flatnonzero(np.concatenate([[True], topics[1:] != topics[:-1]])) if len(keys) else np.zeros(0, int)
        found = cls(topics[starts], np.append(starts, len(keys)))
        if (
            known is not None
            and np.array_equal(known.topics, found.topics)
            and np.array_equal(known.starts, found.starts)
        ):
            return known
        return found

    def runs(self, topics: Int64s) -> list[tuple[int, int]]:
        """Return the rows of these topics (sorted, each once) as ranges; those that touch are one."""
        places = np.flatnonzero(np.isin(self.topics, topics))
        starts, ends = self.starts[places], self.starts[places + 1]
        begins = np.concatenate([[True], starts[1:] != ends[:-1]])[: len(starts)]
        stops = np.concatenate([begins[1:], [True]])[: len(starts)]
        return list(zip(starts[begins].tolist(), ends[stops].tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelvedRows:
    """Rows on a shelf, sorted by key: first all keys, then all rows."""

    shelf: Shelf
    place: int
    size: int
    dtype: np.dtype[np.void]
    index: TopicIndex
    totals: tuple[int, int, int, int]
    """Records, bytes and batches of all rows, and the greatest `created_ms`; of windows the records alone."""

    @property
    def bytes_in_all(self) -> int:
        """Bytes on the shelf."""
        return self.size * (KEY_BYTES + self.dtype.itemsize)

    def keys(self, runs: Sequence[tuple[int, int]]) -> Int64s:
        """Return the keys of ranges of rows. Raises PipelineError."""
        return self._read(runs, self.place, np.dtype(np.int64))

    def rows(self, runs: Sequence[tuple[int, int]]) -> Rows:
        """Return the rows of ranges. Raises PipelineError."""
        return self._read(runs, self.place + KEY_BYTES * self.size, self.dtype)

    def _read(self, runs: Sequence[tuple[int, int]], place: int, dtype: np.dtype) -> np.ndarray:
        size = dtype.itemsize
        parts = [self.shelf.get(place + start * size, (end - start) * size) for start, end in runs]
        return np.frombuffer(bytearray(b"".join(parts)), dtype)

    def drop(self) -> None:
        """Give the place back."""
        self.shelf.drop(self.place, self.bytes_in_all)


def totals_of_rows(rows: Rows) -> tuple[int, int, int, int]:
    """Return the records, bytes and batches of rows, and the greatest `created_ms`: 0 for columns that windows lack."""
    known = rows.dtype.names or ()
    records, size, batches = (int(rows[name].sum()) if name in known else 0 for name in ("records", "bytes", "batches"))
    return records, size, batches, int(rows["created_ms"].max(initial=0)) if "created_ms" in known else 0


def shelved(
    shelf: Shelf, keys: Int64s, rows: Rows, places: NDArray[np.int32], known: TopicIndex | None
) -> ShelvedRows | None:
    """Put rows on a shelf; None if they cannot be kept. `keys` are sorted, and `places` those of their rows."""
    place = shelf.put_parts(_parts(keys, rows, places), len(keys) * (KEY_BYTES + rows.dtype.itemsize))
    if place is None:
        return None
    return ShelvedRows(
        shelf=shelf,
        place=place,
        size=len(keys),
        dtype=rows.dtype,
        index=TopicIndex.of(keys, known),
        totals=totals_of_rows(rows[: len(keys)]),
    )


def _parts(keys: Int64s, rows: Rows, places: NDArray[np.int32]) -> Iterator[memoryview]:
    yield keys.view(np.uint8).data
    for first in range(0, len(places), ROWS_AT_ONCE):
        yield rows[places[first : first + ROWS_AT_ONCE]].view(np.uint8).data
