"""Sums over batches that come a few at a time: many are summed at once, which costs a tenth. Pure."""

from typing import Final

import numpy as np

from pipeline.audit.counting.windows import WindowSums
from pipeline.records.batch_hashes import HeaderTable

MAX_DEFERRED: Final = 4096
"""Batches that wait before they are summed, about 0.5 MB."""


class DeferredSums:
    """Adds batches to `sums` later. `settled` is `sums` with all that was added."""

    def __init__(self, window_ms: int) -> None:
        self._sums = WindowSums(window_ms)
        self._tables: list[HeaderTable] = []
        self._numbers: list[int] = []
        self._count = 0

    @property
    def window_ms(self) -> int:
        """Length of the windows."""
        return self._sums.window_ms

    def add(self, table: HeaderTable, number: int) -> None:
        """Count batches of the partition of a number."""
        if len(table):
            self._tables.append(table)
            self._numbers.append(number)
            self._count += len(table)
            if self._count >= MAX_DEFERRED:
                self._settle()

    @property
    def settled(self) -> WindowSums:
        """The sums over all batches that were added."""
        self._settle()
        return self._sums

    def _settle(self) -> None:
        if self._tables:
            numbers = np.repeat(np.array(self._numbers, np.int64), [len(table) for table in self._tables])
            self._sums.add(np.concatenate(self._tables), numbers)
            self._tables, self._numbers, self._count = [], [], 0
