"""Reader of columns: opens what was fetched in a thread, some MiB at a time, and returns it piece by piece.

Invariants:
- The position of a partition moves when a record batch is returned, to the offset after it. What is opened and not yet
  returned is dropped if the partition was sought or removed; what was not opened, because the opening failed or was
  cancelled, is opened again from the position on.
- Batches are opened within the process's budget for opened batches.
"""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import trio

from pipeline.client.consumer.committed_batches import committed_data
from pipeline.client.consumer.fetcher import Fetcher, Taken
from pipeline.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.client.consumer.columns import Opened

_COLUMNS_MODULE = "pipeline.client.consumer.columns"
COLUMN_NAMES = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedColumns:
    """Records of one partition as an Arrow record batch, from `position` to before `next_offset`."""

    topic_partition: TopicPartition
    position: int
    next_offset: int
    table: "pa.RecordBatch"


class ColumnReader:
    """Opens what a fetcher has fetched. Used by one task."""

    def __init__(self, fetcher: Fetcher, timeout_s: float) -> None:
        self._fetcher = fetcher
        self._timeout_s = timeout_s
        self._taken: Taken = []
        self._portions: Iterator[Opened] | None = None
        self._opened: deque[Opened] = deque()
        self._names: Sequence[str] | None = None

    async def read(self, max_opened_bytes: int, names: Sequence[str] | None) -> OpenedColumns:
        """Return the next record batch that has rows. Raises as `Consumer.columns`."""
        if names != self._names:
            self._names = names
            self._opened.clear()
            self._portions = None
        while True:
            while self._opened:
                columns = self._hand_out(self._opened.popleft())
                if columns is not None and columns.table.num_rows:
                    return columns
            if not self._taken:
                self._taken = await self._fetcher.take(self._timeout_s)
            else:
                await self._open_more(max_opened_bytes, names)

    def close(self) -> None:
        """Drop what was fetched."""
        self._taken, self._portions = [], None
        self._opened.clear()

    def _hand_out(self, opened: "Opened") -> OpenedColumns | None:
        from pipeline.client.consumer.columns import RefusedBatch

        state, _ = self._taken[opened.piece]
        if not self._fetcher.is_current(state) or state.rejected:
            return None
        if isinstance(opened, RefusedBatch):
            self._fetcher.reject_batch(state, opened.header, opened.error)
            return None
        state.position = opened.next_offset
        return OpenedColumns(
            topic_partition=state.topic_partition,
            position=opened.position,
            next_offset=opened.next_offset,
            table=opened.table,
        )

    async def _open_more(self, max_opened_bytes: int, names: Sequence[str] | None) -> None:
        """Open more of what was taken; forget what was taken once all of it is opened and returned."""
        if _COLUMNS_MODULE not in sys.modules:  # numba and pyarrow take long to load
            await trio.to_thread.run_sync(import_module, _COLUMNS_MODULE)
        from pipeline.client.consumer.columns import ClosedPiece, next_opened, opened_portions

        if self._portions is None:
            pieces = [
                ClosedPiece(state.topic_partition, committed_data(batches), max(state.position, batches.position))
                for state, batches in self._taken
            ]
            self._portions = opened_portions(pieces, max_opened_bytes, names)
        taken = self._taken
        portions, self._portions = self._portions, None  # made anew if opening fails or is cancelled
        opened = await trio.to_thread.run_sync(next_opened, portions, abandon_on_cancel=True)
        if self._taken is not taken:  # the consumer was closed meanwhile
            return
        self._opened.extend(opened)
        if opened:
            self._portions = portions
        else:
            self._taken = []
