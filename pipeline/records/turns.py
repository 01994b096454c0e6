"""Scans of batches in turns: work that stops now and then, so that other scans get the threads.

Invariants:

- A scan stops after `_RECORDS_OF_A_STEP` records, and within a record of very many headers. Its driver checks deadlines
  and the time that it took at each stop.
- A scan that stops holds a charge for its memory. A brief scan is not charged, so it never waits behind large ones. At
  most as many brief scans are under way as there are threads for scans.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

from pipeline.records.batch import BatchHeader
from pipeline.records.compression import ReadableBuffer
from pipeline.records.memory import OPENED_BATCHES, Charge
from pipeline.records.reopening import scan_records

_Result = TypeVar("_Result")
_Visitor = TypeVar("_Visitor", bound=Callable[[int, int, bool], bool])

Steps = Generator[Charge | None, None, _Result]
"""Work in steps. It yields a charge, which must be granted before it goes on, or None to give others their turn."""

BRIEF_RECORDS = 10_000
BRIEF_BYTES = 12 << 20
"""Memory of a brief scan, which is not charged: enough for any codec but snappy and the widest zstd."""
_RECORDS_OF_A_STEP = 500


def scan_in_turns(
    header: BatchHeader,
    need_bytes: int,
    open_pieces: Callable[[], Iterable[ReadableBuffer]],
    new_visitor: Callable[[], _Visitor],
    *,
    checks_headers: bool = False,
) -> Steps[tuple[_Visitor, int]]:
    """Call a visitor with timestamp, offset delta and True if there is a key, for each record until it returns True.

    Return the visitor and the number of uncompressed bytes. A scan that turns out not to be brief starts again with
    another visitor. Raises CorruptBatchError.
    """
    if header.record_count <= BRIEF_RECORDS and need_bytes <= BRIEF_BYTES:
        counted, visitor = _CountedPieces(open_pieces()), new_visitor()
        for found in scan_records(counted, header, checks_headers=checks_headers):
            if found is None:
                break
            if visitor(*found):
                return visitor, counted.size_bytes
        else:
            return visitor, counted.size_bytes
    with OPENED_BATCHES.ask(need_bytes) as charge:
        yield charge
        counted, visitor = _CountedPieces(open_pieces()), new_visitor()
        left = _RECORDS_OF_A_STEP
        for found in scan_records(counted, header, checks_headers=checks_headers):
            left -= 1
            if found is None or not left:
                left = _RECORDS_OF_A_STEP
                yield None
            if found is not None and visitor(*found):
                break
        return visitor, counted.size_bytes


class _CountedPieces(Iterator[ReadableBuffer]):
    def __init__(self, pieces: Iterable[ReadableBuffer]) -> None:
        self._pieces = iter(pieces)
        self.size_bytes = 0

    def __next__(self) -> ReadableBuffer:
        piece = next(self._pieces)
        self.size_bytes += len(piece)
        return piece
