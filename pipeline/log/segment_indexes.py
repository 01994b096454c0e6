"""Loads the indexes of a segment if a start can trust them, and looks times up in them."""

from pipeline.errors import StorageError
from pipeline.log.batch_places import BatchPlace
from pipeline.log.index import OFFSET_ENTRY, TIME_ENTRY, Index
from pipeline.log.segment import Segment
from pipeline.records.batch import NO_TIMESTAMP

_MAX_INTERVALS = 4
"""Maximum distance from the last entry of the offset index to the end of the log, in intervals of the index."""


def load_indexes(segment: Segment) -> bool:
    """Take the index files as they are, or return False if they must be rebuilt: if one is missing, does not reach the
    end of the log, or has a last entry that contradicts the log.
    """
    offset_index = Index.load(segment.files, segment.offset_index.path, OFFSET_ENTRY)
    time_index = Index.load(segment.files, segment.time_index.path, TIME_ENTRY)
    if offset_index is None or time_index is None:
        return False
    if offset_index.last is not None and not segment.agrees(*offset_index.last):
        return False
    segment.offset_index, segment.time_index = offset_index, time_index
    if time_index.last is None:
        return segment.size_bytes == 0
    timestamp, relative_offset = time_index.last
    segment.max_timestamp = timestamp
    segment.max_timestamp_offset = segment.base_offset + relative_offset
    try:
        if not _load_tail(segment, timestamp):
            return False
        if timestamp == NO_TIMESTAMP:
            return relative_offset == 0
        newest = segment.locate(segment.max_timestamp_offset)
    except StorageError:
        return False
    return (
        newest is not None and newest.last_offset == segment.max_timestamp_offset and newest.max_timestamp == timestamp
    )


def _load_tail(segment: Segment, max_timestamp: int) -> bool:
    """Find the last batch. False if the offset index ends far before it, or a batch is newer than the time index."""
    first = 0 if segment.offset_index.last is None else segment.offset_index.last[1]
    usual = max(segment.index_interval_bytes, first // max(1, len(segment.offset_index)))
    for place in segment.places(first):
        if place.max_timestamp > max_timestamp or place.position - first > _MAX_INTERVALS * usual:
            return False
        segment.newest = place
    return True


def position_before(segment: Segment, timestamp: int) -> int:
    """Return a position before which no batch has a record of this time or later. Raises StorageError."""
    entry = segment.time_index.floor(timestamp)
    start = _place_of(segment, entry)
    if start is None and entry is not None and entry[0] != NO_TIMESTAMP:
        segment.repair_indexes()
        start = _place_of(segment, segment.time_index.floor(timestamp))
    return 0 if start is None else start.position


def _place_of(segment: Segment, time_entry: tuple[int, int] | None) -> BatchPlace | None:
    """The batch that a time index entry names; None if that has another time or another end."""
    if time_entry is None:
        return None
    timestamp, offset = time_entry[0], segment.base_offset + time_entry[1]
    place = segment.locate(offset)
    return place if place is not None and (place.max_timestamp, place.last_offset) == (timestamp, offset) else None
