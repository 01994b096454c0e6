"""Pending deletions in one log dir: segments that have left their logs, and renamed files until they are unlinked.

Invariants:

- The files of segments are renamed once the log start offset behind them is on the disk. If the disk has no room for
  that offset, they are renamed all the same: from the oldest on, each for good before the next, so that a crash leaves
  no hole.
- A deletion that lacks space or a descriptor is tried again by the next call.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pipeline.errors import DiskFullError, StorageError
from pipeline.log.expiry import delete_segments
from pipeline.log.files import Files
from pipeline.log.partition_files import is_deleted
from pipeline.log.segment import Segment
from pipeline.log.unified_log import UnifiedLog


class Deletions:
    """The deletions of one log dir. Safe for threads."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._renaming = threading.Lock()
        self._expired: dict[UnifiedLog, list[Segment]] = {}
        self._renamed: list[tuple[int, Sequence[Path]]] = []

    def add_segments(self, expired: Mapping[UnifiedLog, Sequence[Segment]]) -> None:
        """Add segments that have left their logs, the oldest first, for the next `rename_segments`."""
        with self._renaming:
            for log, segments in expired.items():
                self._expired.setdefault(log, []).extend(segments)

    def rename_segments(self, now_ms: int, note_starts: Callable[[], None]) -> None:
        """Rename the files of all added segments, after `note_starts` has brought the log start offsets to the disk.

        Raises what `note_starts` raises but DiskFullError, and the first StorageError of a log, which may have been
        deleted meanwhile. Segments that lacked space stay for the next call.
        """
        with self._renaming:
            if not self._expired:
                return
            try:
                note_starts()
                is_noted = True
            except DiskFullError:
                is_noted = False
            first: StorageError | None = None
            for log in list(self._expired):
                try:
                    self._rename(log, now_ms, is_noted=is_noted)
                except StorageError as error:
                    first = first or error
                    if isinstance(error, DiskFullError):
                        continue
                del self._expired[log]
        if first is not None:
            raise first

    def _rename(self, log: UnifiedLog, now_ms: int, *, is_noted: bool) -> None:
        waiting = self._expired[log]
        while waiting:
            self.add(now_ms + log.config.delete_delay_ms, delete_segments(log, waiting[:1], for_good=not is_noted))
            del waiting[0]

    def add(self, due_ms: int, paths: Sequence[Path]) -> None:
        """Add renamed files, or directories of partitions, to be removed at this time."""
        self._renamed.append((due_ms, paths))

    def remove_due(self, now_ms: int, *, is_all_due: bool) -> None:
        """Remove what is due for good. Raises StorageError."""
        for entry in [entry for entry in self._renamed if entry[0] <= now_ms or is_all_due]:
            self._renamed.remove(entry)
            for path in entry[1]:
                if is_deleted(path.name):
                    self._files.remove_tree(path)
                else:
                    self._files.unlink(path)
