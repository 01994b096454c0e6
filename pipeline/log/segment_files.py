"""Truncates, renames and removes the files of a segment. Files are opened before, so that its readers go on reading."""

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
    """Truncate the file of a segment, bring it to the disk, and return it as a closed segment. Raises StorageError.

    Readers of the old segment go on, up to where the file ends: its indexes are open and have lost their names.
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
    """Take over the entries within this segment, and note the rest. Raises StorageError."""
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
    """Unlink the files of a segment, the log first. Raises StorageError."""
    for suffix in (LOG_SUFFIX, *BESIDE_LOG):
        segment.files.unlink(segment_path(segment.directory, segment.base_offset, suffix))


def segment_paths(segment: Segment) -> list[Path]:
    """The paths of a segment's indexes and log file."""
    return [segment.path_of(suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX)]


def rename_segment(segment: Segment, file_suffix: str) -> None:
    """Rename the indexes and log file of a segment, the log last; they stay open. Raises StorageError."""
    segment.hold_open()
    old = segment_paths(segment)
    segment.suffix = file_suffix
    for path, renamed in zip(old, segment_paths(segment), strict=True):
        segment.files.rename(path, renamed)
    segment.offset_index.path = segment.path_of(INDEX_SUFFIX)
    segment.time_index.path = segment.path_of(TIME_INDEX_SUFFIX)


def retire_segment(segment: Segment) -> list[Path]:
    """Rename the files of a deleted segment, the log first, and its producer snapshot; returns the new names.

    Readers go on reading. Raises StorageError; another call goes on with the rest.
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
