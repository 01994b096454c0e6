"""The note that a log acknowledges nothing before it is on the disk (`flush.messages=1`), kept across a loss of power.

Invariants:

- The note is on the disk only after everything that was acknowledged before it is, and goes, for good, before anything
  is acknowledged without a flush. So a log with the note lost nothing acknowledged when its machine lost its power.
- The note says nothing of a disk that damages what it had synced: recovery finds that (`tail-lost`).
"""

from pathlib import Path

from pipeline.log.checkpoint import FLUSHED_FIRST
from pipeline.log.files import Files


def has_promise(files: Files, directory: Path) -> bool:
    """Return True if the log in this directory bears the note. Raises StorageError."""
    return files.exists(directory / FLUSHED_FIRST)


def make_promise(files: Files, directory: Path) -> None:
    """Return once the note is on the disk. Raises StorageError."""
    files.open(directory / FLUSHED_FIRST, create=True).sync()
    files.sync_directory(directory)


def end_promise(files: Files, directory: Path) -> None:
    """Return once no loss of power brings the note back. Raises StorageError."""
    files.unlink(directory / FLUSHED_FIRST)
    files.sync_directory(directory)
