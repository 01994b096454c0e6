"""The mark of a clean shutdown of a log dir: which of its logs are on the disk as they were left.

Invariants:

- The mark is written last, once all logs that it covers are on the disk, and removed before anything is changed.
- The mark covers all logs but those that it names: logs that failed, or that the disk was too slow for.
- After a restart of the machine, each log that the mark names is noted to lack its tail (`tail-lost`) before the
  present boot is noted, and the mark goes after that. So a start that is cut off neither forgets these logs nor
  distrusts the others.
"""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pipeline.errors import StorageError
from pipeline.log.checkpoint import CLEAN_SHUTDOWN, TAIL_LOST, read_file, replace_file
from pipeline.log.directories.tails import POWER_LOST
from pipeline.log.files import Files
from pipeline.log.flush_promise import has_promise
from pipeline.model import TopicPartition


def read_mark(files: Files, root: Path) -> frozenset[str] | None:
    """Return the partitions that the mark does not cover, None without a valid mark. Raises StorageError."""
    content = read_file(files, root / CLEAN_SHUTDOWN)
    if content is None:
        return None
    if b"\0" in content:  # what a file system may leave of a file after a loss of power
        return None
    return frozenset(content.decode(errors="replace").split())


def write_mark(files: Files, root: Path, unclosed: Collection[TopicPartition]) -> None:
    """Write the mark; it covers all logs but these. Raises StorageError."""
    content = "".join(f"{name}\n" for name in sorted(unclosed))
    replace_file(files, root / CLEAN_SHUTDOWN, content.encode())


def note_tails(files: Files, root: Path, unclosed: Collection[str]) -> None:
    """Note that these logs may lack their tails, if the disk takes the note."""
    for name in unclosed:
        directory = root / name
        with suppress(StorageError):
            if files.exists(directory) and not has_promise(files, directory):
                replace_file(files, directory / TAIL_LOST, POWER_LOST)


def remove_mark(files: Files, root: Path) -> None:
    """Remove the mark. Raises StorageError."""
    files.unlink(root / CLEAN_SHUTDOWN)
    files.sync_directory(root)
