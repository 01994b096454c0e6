"""Tracks how much of a log is on the disk, and flushes the rest.

Invariants:

- Everything before `recovery_point` survives a crash. It moves forward only after a sync that succeeded, and back only
  with the end of the log.
- One flush at a time: while `lock` is held, neither the recovery point nor the leader epochs on the disk move.
- What is appended while a flush is under way is either flushed by it or waits for the next one.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.errors import StorageError
from pipeline.log.checkpoint import replace_file
from pipeline.log.config import LogConfig
from pipeline.log.files import Files
from pipeline.log.leader_epochs import LEADER_EPOCHS
from pipeline.log.log_snapshot import LogSnapshot
from pipeline.log.segment import Segment
from pipeline.model import Offset


class Flusher:
    """The flushes of one log."""

    __slots__ = ("_directory", "_files", "has_new_names", "lock", "metadata", "recovery_point", "unflushed_since_ms")

    def __init__(self, files: Files, directory: Path, recovery_point: Offset) -> None:
        self._files = files
        self._directory = directory
        self.lock = threading.Lock()
        self.recovery_point = recovery_point
        self.has_new_names = True
        """True if names in the directory may not be on the disk."""
        self.metadata: Path | None = None
        """The file of the topic id, if it may not be on the disk."""
        self.unflushed_since_ms: int | None = None

    def flush(self, take_snapshot: Callable[[], LogSnapshot]) -> None:
        """Bring the snapshot to the disk; `lock` is held by the caller. Raises StorageError."""
        # before the snapshot is taken: what is appended between the two counts as unflushed, and is flushed
        self.unflushed_since_ms = None
        segments, _, log_end_offset, epochs = take_snapshot()
        try:
            for segment in reversed(segments):
                if segment.is_synced:
                    break
                is_closed = segment is not segments[-1]
                segment.sync(with_indexes=is_closed)
                segment.is_synced = is_closed
            if self.metadata is not None:
                self._files.open(self.metadata).sync()
                self.metadata = None
            if self.has_new_names:
                self.has_new_names = False
                self._files.sync_directory(self._directory)
            if epochs.is_changed:
                epochs.is_changed = False  # before they are read: an append may note one while they are written
                replace_file(self._files, self._directory / LEADER_EPOCHS, epochs.encode())
        except StorageError:
            self.unflushed_since_ms, self.has_new_names, epochs.is_changed = 0, True, True
            raise
        self.recovery_point = log_end_offset

    def is_due(self, segments: Sequence[Segment], config: LogConfig, now_ms: int) -> bool:
        """True if a record has waited for `flush_ms`, or if a closed segment may not be on the disk yet."""
        if len(segments) > 1 and not segments[-2].is_synced:
            return True
        since_ms, flush_ms = self.unflushed_since_ms, config.flush_ms
        # a record appended after `now_ms` has waited for an unknown time: the clock was set back
        return since_ms is not None and flush_ms is not None and not 0 <= now_ms - since_ms < flush_ms
