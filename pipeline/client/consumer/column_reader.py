"""Reader of columns: opens what was fetched in a thread, some MiB at a time, and returns it piece by piece.

Invariants:
- The position of a partition moves when a record batch is returned, to the offset after it. What is opened and not yet
  returned is dropped if the partition was sought or removed; what was not opened, because the opening failed, is opened
  again from the position on.
- An opening goes on when its reader is cancelled, and the next read waits for it: a reader whose every wait is shorter
  than an opening gets on.
- One task reads at a time: two would each be handed what both have opened.
- Batches are opened within the process's budget for opened batches.
"""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import trio

from pipeline.client.consumer.committed_batches import committed_data
from pipeline.client.consumer.fetcher import Fetcher, Taken
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from outcome import Outcome

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


class _Opening:
    """An opening under way, in a thread of its own."""

    def __init__(self, portions: "Iterator[Opened]") -> None:
        from pipeline.client.consumer.columns import next_opened

        self.portions = portions
        self.ended = trio.Event()
        self._result: Outcome[list[Opened]] | None = None
        self._trio = trio.lowlevel.current_trio_token()
        trio.lowlevel.start_thread_soon(partial(next_opened, portions), self._deliver)

    def _deliver(self, result: "Outcome[list[Opened]]") -> None:
        self._result = result
        with suppress(trio.RunFinishedError):
            self._trio.run_sync_soon(self.ended.set)

    def opened(self) -> "list[Opened]":
        """Return what was opened, once the opening has ended; nothing if nothing was left. Raises what it raised."""
        return [] if self._result is None else self._result.unwrap()


class ColumnReader:
    """Opens what a fetcher has fetched. Used by one task."""

    def __init__(self, fetcher: Fetcher, timeout_s: float) -> None:
        self._fetcher = fetcher
        self._timeout_s = timeout_s
        self._taken: Taken = []
        self._portions: Iterator[Opened] | None = None
        self._opened: deque[Opened] = deque()
        self._names: Sequence[str] | None = None
        self._opening: _Opening | None = None
        self._is_read = False

    async def read(self, max_opened_bytes: int, names: Sequence[str] | None) -> OpenedColumns:
        """Return the next record batch that has rows. Raises as `Consumer.columns`."""
        if self._is_read:
            raise PipelineError("another task reads these columns: give each task a consumer or a stream of its own")
        self._is_read = True
        try:
            return await self._read(max_opened_bytes, names)
        finally:
            self._is_read = False

    async def _read(self, max_opened_bytes: int, names: Sequence[str] | None) -> OpenedColumns:
        if names != self._names:
            self._names = names
            self._forget_opened()
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
        self._taken = []
        self._forget_opened()

    def _forget_opened(self) -> None:
        self._opened.clear()
        if self._opening is not None:
            self._opening.ended.set()
        self._opening = self._portions = None

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
        from pipeline.client.consumer.columns import ClosedPiece, opened_portions

        if self._portions is None:
            pieces = [
                ClosedPiece(state.topic_partition, committed_data(batches), max(state.position, batches.position))
                for state, batches in self._taken
            ]
            self._portions = opened_portions(pieces, max_opened_bytes, names)
        if self._opening is None:
            self._opening = _Opening(self._portions)
        opening = self._opening
        await opening.ended.wait()
        if self._opening is not opening:  # the consumer was closed meanwhile
            return
        self._opening = self._portions = None  # made anew if the opening failed
        self._opened.extend(opening.opened())
        if self._opened:
            self._portions = opening.portions
        else:
            self._taken = []
