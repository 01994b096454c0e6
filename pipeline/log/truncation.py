"""Cutting off the end of a log, where it differs from its leader's (KIP-101), or all of it.

Invariants:

- A cut goes between batches: the one that holds the offset goes as a whole.
- After a crash at any step the log is a beginning of what it was, at least up to the cut. The order of the steps says
  so: first what tells of the part to be cut off (the callers' checkpoints, the leader epochs, producer snapshots behind
  the cut, the index of aborted transactions), which a start makes anew from the batches; then the batches, the last
  segment first, brought to the disk before anything can be appended.
- Nothing is written where other bytes were: a segment that is cut is closed, and what follows goes into a new file. A
  reader of the old row gets the old bytes, or an end of the file where they were cut off, never others in their place.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import StorageError
from pipeline.log.files import Files
from pipeline.log.log_snapshot import segment_number
from pipeline.log.segment import Segment
from pipeline.model import Offset


class TruncationPlan(NamedTuple):
    """What stays of a row of segments: some as they are, then of one the first `size_bytes`, up to `end_offset`."""

    kept: tuple[Segment, ...]
    split: Segment | None
    size_bytes: int
    end_offset: Offset


def plan_truncation(segments: Sequence[Segment], offset: Offset) -> TruncationPlan:
    """The cut before the batch that holds `offset`, or in a gap before the next one. Raises StorageError."""
    number = segment_number(segments, offset)
    place = segments[number].locate(offset)
    if place is None:
        number += 1
    elif place.position:
        split = segments[number]
        return TruncationPlan(tuple(segments[:number]), split, place.position, _end_of(split, place.position))
    while number and not segments[number - 1].size_bytes:
        number -= 1
    kept = tuple(segments[:number])
    end_offset = _end_of(kept[-1], kept[-1].size_bytes) if kept else Offset(segments[0].base_offset)
    return TruncationPlan(kept, None, 0, end_offset)


def plan_removal(offset: Offset) -> TruncationPlan:
    """Nothing stays; the log goes on at `offset`."""
    return TruncationPlan((), None, 0, offset)


def _end_of(segment: Segment, size_bytes: int) -> Offset:
    end_offset = segment.find_end(size_bytes)
    if end_offset is None:
        raise StorageError(str(segment.path), f"no batch ends at position {size_bytes}")
    return Offset(end_offset)


def hold_open_behind(segments: Sequence[Segment], cut: TruncationPlan) -> None:
    """Open all of which something will be cut off, so that a lack of open files is met before anything is. Raises
    StorageError.
    """
    for segment in segments[len(cut.kept) :]:
        segment.hold_open()


def truncate_files(
    files: Files, directory: Path, segments: Sequence[Segment], cut: TruncationPlan
) -> tuple[Segment, ...]:
    """Do to the files what was planned; returns when it would survive a crash. Raises StorageError.

    Readers of `segments` keep what they need open: it was opened before (`hold_open_behind`).
    """
    behind = segments[len(cut.kept) :]
    removed = behind if cut.split is None else behind[1:]
    for segment in reversed(removed):
        segment.remove()
    if removed:
        files.sync_directory(directory)
    return cut.kept if cut.split is None else (*cut.kept, cut.split.cut(cut.size_bytes))
