"""Batches of one partition that a member of a group has committed: which of them the member counts. Pure.

A *range* is what one member committed of a partition without interruption: `start_offset` is where it began to read,
`end_offset` the last committed offset. A batch belongs to a range if the offset after the batch lies in it:
`start_offset` < next offset <= `end_offset`.

Invariants:

A. Members of a group begin where the one before has committed last. So their ranges touch each other, and a batch
   belongs to one range, also if an offset within the batch was committed, or if its records were handed out twice.
B. A range counts each of its batches once, when the batch's end is committed. Batches that are read again, after a
   seek or because the partition came back, are not counted again.
C. Offsets whose batches were not seen are in no range: after a seek forward, after a commit of another member, or if
   too many batches waited, the next range begins. So ranges with a hole between them say that something was committed
   without a count. Ranges that overlap say that offsets were set back, and records consumed again.
"""

from collections import deque

import numpy as np

from pipeline.records.batch_hashes import HEADER, HeaderTable

NO_OFFSET = -1


class CommittedRange:
    """The present range of a partition, and the batches that wait for a commit."""

    def __init__(self) -> None:
        self.number = 0
        """Ranges that ended before this one."""
        self.start_offset = NO_OFFSET
        self.end_offset = NO_OFFSET
        self.waiting = 0
        """Number of batches that wait for a commit."""
        self._expected = NO_OFFSET
        """Offset at which the next batches follow; -1 if the partition was given up."""
        self._tables: deque[HeaderTable] = deque()

    def fetched(self, table: HeaderTable, position: int, next_offset: int) -> None:
        """Take note of batches from `position` to before `next_offset`.

        If `number` has changed, they begin another range, and the caller counts from nothing.
        """
        if position != self._expected:
            self._go_on_at(position)
        self._expected = next_offset
        table = table[_ends(table) > max(self.start_offset, self.end_offset)]
        if len(table):
            self._tables.append(table)
            self.waiting += len(table)

    def committed(self, offset: int) -> HeaderTable:
        """Take note of a committed offset. Return the batches to count (invariant B)."""
        end_offset = min(offset, self._expected)
        found: list[HeaderTable] = []
        while self._tables and end_offset > self.end_offset:
            first = self._tables.popleft()
            count = int(np.searchsorted(_ends(first), end_offset, side="right"))
            self.waiting -= count
            if count:
                found.append(first[:count])
            if count < len(first):
                self._tables.appendleft(first[count:])
                break
        if self._expected != NO_OFFSET and end_offset > self.start_offset:
            self.end_offset = max(self.end_offset, end_offset)
        return np.concatenate(found) if found else np.zeros(0, HEADER)

    def give_up(self) -> None:
        """Take note that other members may have the partition from now on."""
        self._drop_from(NO_OFFSET)
        self._expected = NO_OFFSET

    def forget_waiting(self) -> None:
        """Forget the batches that wait: there are too many. The next range begins behind them (invariant C)."""
        self._drop_from(NO_OFFSET)
        self._begin(self._expected)

    def _go_on_at(self, position: int) -> None:
        """Go on at another offset, in this range if nothing lies between."""
        is_empty = self.end_offset == NO_OFFSET
        is_before = is_empty and position < self.start_offset
        if is_before or position > max(self.end_offset, self._expected):
            self.give_up()
            self._begin(position)
        else:
            self._drop_from(position)

    def _begin(self, position: int) -> None:
        self.number += self.end_offset != NO_OFFSET
        self.start_offset, self.end_offset = position, NO_OFFSET

    def _drop_from(self, offset: int) -> None:
        """Forget waiting batches that end after an offset: they are read again."""
        while self._tables and (last := self._tables.pop()) is not None:
            count = int(np.searchsorted(_ends(last), offset, side="right"))
            self.waiting -= len(last) - count
            if count:
                self._tables.append(last[:count])
                break


def _ends(table: HeaderTable) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the offset after each batch."""
    ends: np.ndarray[tuple[int], np.dtype[np.int64]] = table["base_offset"] + table["last_offset_delta"] + 1
    return ends
