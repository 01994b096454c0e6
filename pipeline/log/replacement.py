"""Replaces the sources of a cleaned segment by it, atomically across crashes.

The steps, in the order of the renames on the disk:

1. The cleaned segment lies under the suffix CLEANED, brought to the disk. A start finds it and removes it.
2. Its files are renamed to SWAP, the log last. From here on it counts: a start finds its log and goes on with step 3.
3. The sources are renamed to DELETED.
4. The new files get their final names, the log last. A start that has to do this rebuilds the indexes.

The index of aborted transactions takes no part: it stays with its segment, or was replaced before.

The contents of a SWAP tell which segments it replaces: a cleaned segment ends where its last source ended. A start
checks that before it replaces anything. A file that is damaged, or does not end where one of the segments does, is not
the broker's: it is renamed to REFUSED, and the log keeps its segments.
"""

from collections.abc import Sequence
from pathlib import Path

from pipeline.diagnostics import get_logger
from pipeline.log.checkpoint import read_file
from pipeline.log.files import Files
from pipeline.log.log_failure import check_online, failing_half_way, failing_unless_full, fails_alone
from pipeline.log.partition_files import is_own_file
from pipeline.log.recovery import check_segment
from pipeline.log.segment import Segment
from pipeline.log.segment_files import rename_segment, segment_paths
from pipeline.log.segment_indexes import load_indexes
from pipeline.log.segment_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    GAP_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_offset,
    segment_offsets,
    segment_path,
)
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Offset

REFUSED_SUFFIX = ".refused"

_REPLACED = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
logger = get_logger(__name__)


def load_cleaned(files: Files, directory: Path, base_offset: int, *, index_interval_bytes: int, now_ms: int) -> Segment:
    """Load the cleaned segment, open and ready to be read. Raises StorageError."""
    segment = Segment(
        files,
        directory,
        base_offset,
        index_interval_bytes=index_interval_bytes,
        now_ms=now_ms,
        file_suffix=CLEANED_SUFFIX,
    ).load()
    if not load_indexes(segment):
        segment.rebuild_indexes()
        segment.seal()
        segment.sync(with_indexes=True)
    segment.hold_open()
    segment.is_synced = True
    return segment


def row_after_swap(
    row: tuple[Segment, ...], old: Sequence[Segment], new: Segment, end_offset: int
) -> tuple[Segment, ...] | None:
    """The segments with a cleaned one in the place of its sources; None if a source is gone."""
    first = row.index(old[0]) if old and old[0] in row else -1
    after = first + len(old)
    if first < 0 or old[0].base_offset != new.base_offset or row[after].base_offset != end_offset:
        return None
    return (*row[:first], new, *row[after:])


def swap_files(files: Files, directory: Path, old: Sequence[Segment], new: Segment) -> list[Path]:
    """Steps 2 to 4; returns the names of the old files, to be unlinked. Raises StorageError."""
    rename_segment(new, SWAP_SUFFIX)
    files.sync_directory(directory)
    for segment in old:
        rename_segment(segment, DELETED_SUFFIX)
    files.sync_directory(directory)
    rename_segment(new, "")
    files.sync_directory(directory)
    return [path for segment in old for path in segment_paths(segment)]


@fails_alone
def replace_segments(
    log: UnifiedLog, base_offset: int, end_offset: int, now_ms: int, truncations: int
) -> list[Path] | None:
    """Replace the closed segments from `base_offset` up to `end_offset` by the cleaned one beside them.

    Returns the old files, to be unlinked later; None if a segment is gone, or if the log was truncated since it had
    this count of `truncations`. To be called in a thread; readers of the old segments go on. Raises StorageError; the
    log is offline then, unless space or a descriptor was missing at the beginning.
    """
    with log.locks.files:
        check_online(log)
        if truncations != log.truncations:
            return None
        with failing_unless_full(log):
            interval = log.config.index_interval_bytes
            new = load_cleaned(log.files, log.directory, base_offset, index_interval_bytes=interval, now_ms=now_ms)
            closed = log.snapshot.closed_segments()
            old = [segment for segment, _ in closed if base_offset <= segment.base_offset < end_offset]
            for segment in old:
                segment.hold_open()
        with failing_half_way(log):
            with log.locks.snapshot:
                row = row_after_swap(log.snapshot.segments, old, new, end_offset)
                if row is None:
                    return None
                log.rewritten_offset = max(log.rewritten_offset, Offset(end_offset))  # before readers see the segment
                log.snapshot = log.snapshot._replace(segments=row)
            log.aborted.take_cleaned(base_offset)
            return swap_files(log.files, log.directory, old, new)


def note_cleaned(log: UnifiedLog, end_offset: Offset, truncations: int) -> bool:
    """Set the clean offset, in a thread; False if the log was truncated since it had this count of `truncations`."""
    with log.locks.files:
        if truncations != log.truncations:
            return False
        log.clean_offset = end_offset
        return True


def remove_cleaned(files: Files, directory: Path) -> None:
    """Undo step 1, at a start or after a cleaner failed. Raises StorageError."""
    for name in files.names(directory):
        if name.endswith(CLEANED_SUFFIX) and is_own_file(name):
            files.unlink(directory / name)


def finish_replacements(files: Files, directory: Path) -> list[str]:
    """Undo or finish a replacement that was cut off. Returns the names in the directory. Raises StorageError."""
    names = files.names(directory)
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        return names
    remove_cleaned(files, directory)
    swapped = LOG_SUFFIX + SWAP_SUFFIX
    for base_offset in segment_offsets(names, swapped):
        _finish(files, directory, base_offset)
    for name in files.names(directory):
        if name.endswith(SWAP_SUFFIX) and is_own_file(name):
            files.unlink(directory / name)
    return files.names(directory)


def _finish(files: Files, directory: Path, base_offset: int) -> None:
    cleaned = Segment(files, directory, base_offset, index_interval_bytes=0, now_ms=0, file_suffix=SWAP_SUFFIX).load()
    good = check_segment(cleaned)
    end_offset = good.next_offset
    reason = good.damage or _misfit(files, directory, base_offset, end_offset)
    if reason is not None:
        refused = cleaned.path.with_name(cleaned.path.name + REFUSED_SUFFIX)
        files.rename(cleaned.path, refused)
        files.sync_directory(directory)
        logger.error("cleaned_segment_refused", path=str(cleaned.path), reason=reason, kept_as=str(refused))
        return
    for name in files.names(directory):
        found = [segment_offset(name, suffix) for suffix in _REPLACED if name.endswith(suffix)]
        is_source = bool(found) and found[0] is not None and base_offset <= found[0] < end_offset
        if is_source and name != segment_path(directory, base_offset, LOG_SUFFIX).name:
            files.unlink(directory / name)
    files.sync_directory(directory)
    files.rename(cleaned.path, segment_path(directory, base_offset, LOG_SUFFIX))
    files.sync_directory(directory)


def _misfit(files: Files, directory: Path, base_offset: int, end_offset: int) -> str | None:
    """Return why no segments can have become one from `base_offset` to `end_offset`, None if they can have."""
    names = files.names(directory)
    bases = segment_offsets(names, LOG_SUFFIX)
    if base_offset not in bases and base_offset not in segment_offsets(names, LOG_SUFFIX + DELETED_SUFFIX):
        return f"no segment begins at offset {base_offset}"
    following = next((found for found in bases if found >= end_offset > base_offset), None)
    if following is None:
        return f"it ends at offset {end_offset}, where no other segment follows"
    gap = read_file(files, segment_path(directory, following, GAP_SUFFIX))
    if following != end_offset and gap != str(end_offset).encode():
        return f"it ends at offset {end_offset}, and the next segment begins at {following}"
    return None
