"""Rewrites the files of a log after a failed sync: their page cache holds data that a later sync will not write.

Linux counts pages that it could not write as clean, so a sync of the next process succeeds without them. Invariants:

- A log is marked in its directory after its disk refused something. The mark need not survive a loss of power: after
  that, reads return what the disk holds.
- The next start copies everything that may not be on the disk to new files and syncs them, before it trusts any of it;
  then it removes the mark.
"""

from contextlib import suppress
from pathlib import Path

from pipeline.errors import StorageError
from pipeline.log.checkpoint import SYNC_FAILED, TEMPORARY_SUFFIX
from pipeline.log.files import CHUNK_BYTES, Files
from pipeline.log.partition_files import is_own_file
from pipeline.log.segment_names import LOG_SUFFIX, segment_offset, segment_offsets
from pipeline.model import Offset


def note_failure(files: Files, directory: Path) -> None:
    """Have the next start rewrite the log, if the failing disk takes the mark."""
    with suppress(StorageError):
        files.open(directory / SYNC_FAILED, create=True)


def rewrite_unsynced(files: Files, directory: Path, recovery_point: Offset) -> None:
    """Rewrite a marked log from the segment of the recovery point on. Raises StorageError."""
    if not files.exists(directory / SYNC_FAILED):
        return
    names = [name for name in files.names(directory) if is_own_file(name) and not name.endswith(TEMPORARY_SUFFIX)]
    starts = segment_offsets(names, LOG_SUFFIX)
    trusted_before = max((start for start in starts if start < recovery_point), default=0)
    for name in names:
        base = segment_offset(name.partition(".")[0], "")
        if name != SYNC_FAILED and (base is None or base >= trusted_before):
            _rewrite(files, directory / name)
    files.sync_directory(directory)
    files.unlink(directory / SYNC_FAILED)


def _rewrite(files: Files, path: Path) -> None:
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    files.unlink(temporary)
    old, new = files.open(path), files.open(temporary, create=True)
    position = 0
    while chunk := old.read_at(CHUNK_BYTES, position):
        new.write_at(chunk, position)
        position += len(chunk)
    new.sync()
    files.rename(temporary, path)
