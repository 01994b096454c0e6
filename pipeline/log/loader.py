"""Opens a partition's directory in whatever state the last process left it.

Invariants:

- After a clean shutdown everything is trusted. After any other end every segment that reaches the recovery point or
  beyond is checked batch by batch; a closed segment that lies wholly before it is trusted.
- What is loaded is a prefix of what was appended and holds all that was flushed.
- A loss of more than a last, partly written batch is noted in the directory before anything is truncated, so that
  every start knows of it until it has been settled (`settle_tails`).
- Data that a failed sync may have kept from the disk is rewritten before it is trusted (`unsynced`).
- A compaction that was under way is undone or finished first.
- An index that is missing or contradicts the log is rebuilt.
"""

import uuid
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.diagnostics import get_logger
from pipeline.errors import StorageError
from pipeline.log.batch_places import REMEDY
from pipeline.log.checkpoint import (
    PARTITION_METADATA,
    TAIL_LOST,
    encode_partition_metadata,
    read_file,
    read_partition_metadata,
    replace_file,
)
from pipeline.log.config import LogConfig
from pipeline.log.files import Files
from pipeline.log.flush_promise import has_promise
from pipeline.log.held_files import release_files
from pipeline.log.leader_epochs import LEADER_EPOCHS, LeaderEpochs
from pipeline.log.log_snapshot import LogSnapshot
from pipeline.log.partition_files import is_own_file
from pipeline.log.producer_snapshots import restore_producers
from pipeline.log.producer_state import ProducerStates
from pipeline.log.recovery import check_segment
from pipeline.log.replacement import finish_replacements
from pipeline.log.segment import Segment
from pipeline.log.segment_files import remove_segment
from pipeline.log.segment_indexes import load_indexes
from pipeline.log.segment_names import (
    BESIDE_LOG,
    DELETED_SUFFIX,
    GAP_SUFFIX,
    LOG_SUFFIX,
    segment_offset,
    segment_offsets,
    segment_path,
)
from pipeline.log.transactions import AbortedTransactions
from pipeline.log.unified_log import UnifiedLog
from pipeline.log.unsynced import rewrite_unsynced
from pipeline.model import Offset, TopicPartition

_OFFSET_DIGITS = 20
logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLog:
    """A log to be created."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID | None = None
    config: LogConfig | None = None
    """None: the settings of the log dir."""
    is_new: bool = True
    """True if the partition never had a log on any broker."""


def load_log(
    files: Files,
    directory: Path,
    topic_partition: TopicPartition,
    config: LogConfig,
    *,
    recovery_point: Offset,
    clean: bool,
    now_ms: int,
    log_start_offset: int = 0,
) -> UnifiedLog:
    """Load the log in a directory, an empty one without segments. Offsets: as checkpointed. Raises StorageError."""
    rewrite_unsynced(files, directory, recovery_point)
    is_on_disk = recovery_point > 0 and _was_begun(files, directory)
    topic_id: uuid.UUID | None = read_partition_metadata(files, directory, is_on_disk=is_on_disk)
    if topic_id is None:  # an invalid file would be taken for damage once something is on the disk
        files.unlink(directory / PARTITION_METADATA)
    loader = _Loader(files, directory, config, now_ms, log_start_offset)
    segments, log_end_offset = loader.load_segments(recovery_point, clean=clean)
    producers = ProducerStates(expiration_ms=config.producer_expiration_ms)
    is_trusted = clean and loader.is_trusted
    known = _read_epochs(files, directory)
    epochs = known or LeaderEpochs()
    aborted = AbortedTransactions(files, directory)
    log = UnifiedLog(
        files,
        directory,
        topic_partition,
        config,
        topic_id=topic_id,
        snapshot=LogSnapshot(segments, Offset(max(log_start_offset, segments[0].base_offset)), log_end_offset, epochs),
        producers=producers,
        aborted=aborted,
        is_clean=is_trusted or (not log_end_offset and known is None),
        recovery_point=log_end_offset if is_trusted else min(recovery_point, log_end_offset),
    )
    restore_producers(files, directory, producers, log.snapshot, partial(log.take_producer, now_ms=now_ms), aborted)
    if known is None or not is_trusted:
        epochs.truncate_from_end(log_end_offset)
        epochs.note(log.headers(log.log_start_offset if known is None else log.recovery_point))
    epochs.truncate_from_start(log.log_start_offset)
    epochs.is_changed = not is_trusted or known is None
    log.may_lack_tail = loader.has_lost_tail or log_end_offset < recovery_point
    log.is_flushed_first = has_promise(files, directory)
    if log.recovery_point < log_end_offset:
        log.flusher.unflushed_since_ms = now_ms  # the former process left records that are flushed as if new
    if topic_id is not None and not recovery_point:
        log.flusher.metadata = directory / PARTITION_METADATA  # its process may have ended before the first flush
    release_files(log)
    return log


def create_log(files: Files, root: Path, new: NewLog, config: LogConfig, *, now_ms: int) -> UnifiedLog:
    """Create an empty log in a log dir, which its first flush brings to the disk. Raises StorageError."""
    directory, config = root / str(new.topic_partition), new.config or config
    files.make_directory(directory)
    metadata = directory / PARTITION_METADATA
    if new.topic_id is not None:
        file = files.open(metadata, create=True)
        file.truncate(0)
        file.write_at(encode_partition_metadata(new.topic_id), 0)
    segment = Segment(files, directory, 0, index_interval_bytes=config.index_interval_bytes, now_ms=now_ms).create()
    segment.release()
    log = UnifiedLog(
        files,
        directory,
        new.topic_partition,
        config,
        topic_id=new.topic_id,
        snapshot=LogSnapshot((segment,), Offset(0), Offset(0), LeaderEpochs()),
        producers=ProducerStates(expiration_ms=config.producer_expiration_ms),
        aborted=AbortedTransactions(files, directory),
        is_clean=True,
        recovery_point=Offset(0),
    )
    if new.topic_id is not None:
        log.flusher.metadata = metadata
    return log


def _was_begun(files: Files, directory: Path) -> bool:
    """Return False if the directory may be of a creation that was cut off: it never held a record."""
    logs = [name for name in files.names(directory) if name.endswith(LOG_SUFFIX)]
    first = segment_path(directory, 0, LOG_SUFFIX).name
    return any(name != first or files.size(directory / name) for name in logs)


def _read_epochs(files: Files, directory: Path) -> LeaderEpochs | None:
    content = read_file(files, directory / LEADER_EPOCHS)
    try:
        return None if content is None else LeaderEpochs.decode(content)
    except ValueError:
        return None


def _is_left_over(name: str, base_offsets: Set[int]) -> bool:
    """Return True for a file that was about to be removed, or whose segment is gone."""
    if name.endswith(DELETED_SUFFIX):
        return is_own_file(name)
    for suffix in BESIDE_LOG:
        if name.endswith(suffix):
            offset = segment_offset(name, suffix)
            return offset is not None and offset not in base_offsets
    return False


class _Loader:
    def __init__(self, files: Files, directory: Path, config: LogConfig, now_ms: int, log_start_offset: int) -> None:
        self._files = files
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._log_start_offset = log_start_offset
        self.damaged = False
        self.is_trusted = True
        self.has_lost_tail = files.exists(directory / TAIL_LOST)

    def load_segments(self, recovery_point: Offset, *, clean: bool) -> tuple[tuple[Segment, ...], Offset]:
        base_offsets = self._base_offsets(finish_replacements(self._files, self._directory))
        segments: list[Segment] = []
        next_offset = 0
        for number, base_offset in enumerate(base_offsets):
            is_last = number + 1 == len(base_offsets)
            segment = self._segment(base_offset).load()
            segments.append(segment)
            if not is_last and (clean or base_offsets[number + 1] < recovery_point):
                self._trust_closed(segment, base_offsets[number + 1])
                next_offset = base_offsets[number + 1]
                continue
            end = self._trust_last(segment) if clean else None
            self.is_trusted = self.is_trusted and end is not None
            next_offset = self._recover(segment, base_offsets[number + 1 :]) if end is None else end
            if self.damaged:
                break  # `_recover` removed the segments behind
            if not is_last:
                segment.seal()
        end = self._drop_unused(segments)
        next_offset = next_offset if end is None else end
        if next_offset < self._log_start_offset:
            self.is_trusted = False
            while segments:
                remove_segment(segments.pop())
            next_offset = self._log_start_offset
        if not segments:
            self.is_trusted = False
            segments.append(self._segment(self._log_start_offset).create())
        return tuple(segments), Offset(next_offset)

    def _base_offsets(self, names: Sequence[str]) -> list[int]:
        """Return the sorted base offsets of all segments; removes other files, and segments before the log start."""
        base_offsets = segment_offsets(names, LOG_SUFFIX)
        known = set(base_offsets)
        for name in names:
            if _is_left_over(name, known):
                self._files.unlink(self._directory / name)
        while len(base_offsets) > 1 and base_offsets[1] <= self._log_start_offset:
            remove_segment(self._segment(base_offsets.pop(0)).load())
        return base_offsets

    def _drop_unused(self, segments: list[Segment]) -> int | None:
        """Remove an empty last segment behind a gap; returns the log end offset then."""
        if len(segments) < 2 or segments[-1].size_bytes:
            return None
        end = self._end_before_gap(segments[-1].base_offset)
        if end is not None:
            remove_segment(segments.pop())
            self._files.sync_directory(self._directory)
            segments[-1].is_synced = False
        return end

    def _segment(self, base_offset: int) -> Segment:
        return Segment(
            self._files,
            self._directory,
            base_offset,
            index_interval_bytes=self._config.index_interval_bytes,
            now_ms=self._now_ms,
        )

    def _trust_closed(self, segment: Segment, next_base_offset: int) -> None:
        """Take a closed segment as it is, if it ends where the next one begins. Raises StorageError."""
        if not load_indexes(segment):
            logger.warning("index_rebuilt", path=str(segment.path))
            segment.rebuild_indexes()
            segment.seal()
            segment.sync(with_indexes=True)
        end = segment.find_end()
        if end is None or (end != next_base_offset and end != self._end_before_gap(next_base_offset)):
            reason = "ends within a batch" if end is None else f"ends at offset {end}"
            reason += f", and the next segment begins at {next_base_offset}: {REMEDY}"
            if end is not None and end < next_base_offset:
                gap = segment_path(self._directory, next_base_offset, GAP_SUFFIX).name
                reason += f"; to go on without the records between, write {end} into {gap}"
            raise StorageError(str(segment.path), reason)
        segment.is_synced = True

    def _trust_last(self, segment: Segment) -> int | None:
        """The end of the last segment, found from its indexes; None if the shutdown was not clean."""
        if not segment.size_bytes:  # never synced: it may have no index files
            return segment.base_offset
        if not load_indexes(segment):
            return None
        return segment.find_end()

    def _end_before_gap(self, base_offset: int) -> int | None:
        """The end offset of the segment before, if there is a gap before this one."""
        content = read_file(self._files, segment_path(self._directory, base_offset, GAP_SUFFIX))
        return int(content) if content is not None and content.isdigit() and len(content) < _OFFSET_DIGITS else None

    def _recover(self, segment: Segment, later: Sequence[int]) -> int:
        """Truncate a segment to its good batches; if any are lost, all later segments are removed, too.

        The later segments go first and for good: a crash half way must not leave them behind a truncated one.
        """
        good = check_segment(segment)
        damage = good.damage
        if damage is None and later and good.next_offset not in (later[0], self._end_before_gap(later[0])):
            damage = "its last batches are gone"
        if damage is None:
            return good.next_offset
        self.damaged = True
        if later or not good.is_torn:
            self.has_lost_tail = True
            replace_file(self._files, self._directory / TAIL_LOST, damage.encode())
        logger.warning(
            "log_truncated",
            path=str(segment.path),
            reason=damage,
            removed_bytes=segment.size_bytes - good.size_bytes,
            removed_segments=len(later),
            log_end_offset=good.next_offset,
        )
        for base_offset in reversed(later):
            remove_segment(self._segment(base_offset).load())
        self._files.sync_directory(self._directory)
        segment.truncate(good.size_bytes)
        segment.sync(with_indexes=False)
        return good.next_offset
