"""Producer snapshots beside the segments: `<offset>.snapshot` is the state after all batches before that offset.

Invariants:

- A snapshot is used only if its checksum is right; without one the state is rebuilt from the batch headers.
- A snapshot beyond the log end offset is removed for good before anything is appended: other batches may take the place
  of those that it counts.
"""

from collections.abc import Callable
from pathlib import Path

from pipeline.errors import DiskFullError
from pipeline.log.checkpoint import read_file
from pipeline.log.config import LogConfig
from pipeline.log.files import Files
from pipeline.log.log_snapshot import LogSnapshot
from pipeline.log.producer_state import ProducerStates
from pipeline.log.segment_names import SNAPSHOT_SUFFIX, segment_offsets, segment_path
from pipeline.log.transactions import AbortedTransactions, take_batch
from pipeline.model import Offset
from pipeline.records.batch import BatchHeader

_SNAPSHOTS_KEPT = 2


def write_snapshot(
    files: Files, directory: Path, offset: Offset, producers: ProducerStates, *, durable: bool = False
) -> None:
    """Write the state as of `offset` and remove all but the newest snapshots. Raises StorageError."""
    file = files.open(segment_path(directory, offset, SNAPSHOT_SUFFIX), create=True)
    file.truncate(0)
    try:
        file.write_at(producers.snapshot(), 0)
    except DiskFullError:
        file.truncate(0)  # else the part that was written takes space
        raise
    if durable:
        file.sync()
    for stale in segment_offsets(files.names(directory), SNAPSHOT_SUFFIX)[:-_SNAPSHOTS_KEPT]:
        files.unlink(segment_path(directory, stale, SNAPSHOT_SUFFIX))


def remove_snapshots_behind(files: Files, directory: Path, offset: Offset) -> None:
    """Remove for good the snapshots that count batches from this offset on. Raises StorageError."""
    stale = [found for found in segment_offsets(files.names(directory), SNAPSHOT_SUFFIX) if found > offset]
    for found in stale:
        files.unlink(segment_path(directory, found, SNAPSHOT_SUFFIX))
    if stale:
        files.sync_directory(directory)


def restore_producers(
    files: Files,
    directory: Path,
    producers: ProducerStates,
    snapshot: LogSnapshot,
    take: Callable[[BatchHeader], None],
    aborted: AbortedTransactions,
) -> None:
    """Fill `producers` from the newest good snapshot; `take` is called for each header behind it. Raises StorageError.

    Damaged snapshots, and those outside of the log, are removed.
    """
    start = snapshot.start_offset
    has_removed = False
    for offset in reversed(segment_offsets(files.names(directory), SNAPSHOT_SUFFIX)):
        path = segment_path(directory, offset, SNAPSHOT_SUFFIX)
        if snapshot.start_offset <= offset <= snapshot.end_offset:
            try:
                producers.restore(read_file(files, path) or b"")
            except ValueError:
                pass
            else:
                start = Offset(offset)
                break
        files.unlink(path)
        has_removed = True
    if has_removed:
        files.sync_directory(directory)
    aborted.forget_from(start)  # also where nothing is behind: a crash may have left what the log has lost
    for header in snapshot.headers(start) if start < snapshot.end_offset else ():
        take(header)


def rebuild_producers(
    files: Files,
    directory: Path,
    known: ProducerStates,
    config: LogConfig,
    snapshot: LogSnapshot,
    aborted: AbortedTransactions,
) -> ProducerStates:
    """Rebuild the state of the producers of a truncated log. Raises StorageError."""
    producers = ProducerStates(expiration_ms=config.producer_expiration_ms)
    # a batch does not tell when it was appended: its producer counts as active at the last append that is known
    now_ms = max((producer.last_append_ms for producer in known.active()), default=0)
    restore_producers(
        files,
        directory,
        producers,
        snapshot,
        lambda header: take_batch(header, now_ms, producers, aborted, snapshot),
        aborted,
    )
    return producers
