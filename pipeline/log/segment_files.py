"""Files of a segment that get another name, another length, or none.

A segment's files are opened before: its readers read on, whatever becomes of the names.
"""

from pathlib import Path

from pipeline.log.index import Index
from pipeline.log.segment import Segment
from pipeline.log.segment_names import (
    BESIDE_LOG,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_path,
)


def truncate_segment(segment: Segment, size_bytes: int) -> Segment:
    """The first batches of a segment as a closed one in the same file, truncated and on the disk. Raises
    StorageError.

    Readers of the segment go on, up to where the file ends: the indexes are open and have lost their names.
    """
    segment.hold_open()
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        segment.files.unlink(segment.path_of(suffix))
    file = segment.file
    file.truncate(size_bytes)
    file.sync()
    left = Segment(
        segment.files,
        segment.directory,
        segment.base_offset,
        index_interval_bytes=segment.index_interval_bytes,
        now_ms=segment.created_ms,
    )
    left.held_file = file
    left.was_truncated = True
    left.size_bytes = size_bytes
    _index_beginning_of(left, segment.offset_index, segment.time_index)
    return left


def _index_beginning_of(segment: Segment, offset_index: Index, time_index: Index) -> None:
    """Take their entries as far as this segment reaches, and note the rest. Raises StorageError."""
    entry = offset_index.last_below(segment.size_bytes)
    if entry is None or not segment.agrees(*entry):
        segment.rebuild_indexes()
        return
    segment.offset_index = offset_index.beginning(segment.size_bytes)
    segment.time_index = time_index.beginning(entry[0] + 1)
    if segment.time_index.last is not None:
        segment.max_timestamp = segment.time_index.last[0]
        segment.max_timestamp_offset = segment.base_offset + segment.time_index.last[1]
    for place in segment.places(entry[1]):
        segment.note(place.position, place.last_offset, place.max_timestamp, place.size_bytes)


def remove_segment(segment: Segment) -> None:
    """Unlink its files, the log first. Raises StorageError."""
    for suffix in (LOG_SUFFIX, *BESIDE_LOG):
        segment.files.unlink(segment_path(segment.directory, segment.base_offset, suffix))


def segment_paths(segment: Segment) -> list[Path]:
    """Its log file and its indexes."""
    return [segment.path_of(suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX)]


def rename_segment(segment: Segment, file_suffix: str) -> None:
    """Rename its log file and its indexes, the log last; they stay open. Raises StorageError."""
    segment.hold_open()
    old = segment_paths(segment)
    segment.suffix = file_suffix
    for path, renamed in zip(old, segment_paths(segment), strict=True):
        segment.files.rename(path, renamed)
    segment.offset_index.path = segment.path_of(INDEX_SUFFIX)
    segment.time_index.path = segment.path_of(TIME_INDEX_SUFFIX)


def retire_segment(segment: Segment) -> list[Path]:
    """Rename its files, the log first, and that of the producers at its start; returns the new names.

    Whoever still reads it reads on: all that it may need is open by then. Raises StorageError; another call goes on
    with the rest.
    """
    segment.hold_open()
    retired = []
    for suffix in (LOG_SUFFIX, *BESIDE_LOG, SNAPSHOT_SUFFIX):
        path = segment_path(segment.directory, segment.base_offset, suffix)
        deleted = path.with_name(path.name + DELETED_SUFFIX)
        if segment.files.exists(path):
            segment.files.rename(path, deleted)
        elif not segment.files.exists(deleted):
            continue
        retired.append(deleted)
    return retired
