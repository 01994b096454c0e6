"""A log dir: a directory of one broker with one directory for each of its partitions.

Invariants:

- The directory belongs to one broker of one cluster; others refuse it. Its own id never changes (KIP-858): the process
  that holds the lock may report that the broker which registered this id is dead.
- The mark of a clean shutdown is written last. It names the logs that were not brought to disk (`clean_mark`). So
  the next start checks these logs, or without the mark all of them (`startup`).
- A partition's directory is renamed before its files are removed: a deletion that was cut off is finished at the next
  start and never leaves half a log. A log is removed by partition and topic id, never by name alone (`displacement`).
- Once the disk has failed under any of its logs, the directory is offline for good: `failure` says why, and all its
  logs refuse every call. Only the next start finds out what the failed disk still holds.
- A log start offset is checkpointed before older segments lose their files. A checkpoint never has an offset of an
  earlier log of the same name.
- Files of deleted segments and partitions are renamed, and unlinked after the delay in the log's settings or at the
  next start.
"""

import random
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from pipeline.diagnostics import get_logger
from pipeline.errors import DiskFullError, OddEntryError, PipelineError, StorageError
from pipeline.log.checkpoint import CLEAN_OFFSETS, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from pipeline.log.config import LogConfig
from pipeline.log.directories.clean_mark import write_mark
from pipeline.log.directories.deletions import Deletions
from pipeline.log.directories.logs_set_aside import LogName, LogsSetAside, name_of_failed
from pipeline.log.directories.offset_checkpoints import OffsetCheckpoints
from pipeline.log.directories.served_replicas import ReplicaId, ServedReplicas
from pipeline.log.directories.shutdown import close_all
from pipeline.log.files import FileLock, Files, Volume
from pipeline.log.held_files import drop_files, release_files
from pipeline.log.loader import NewLog, create_log
from pipeline.log.log_failure import abandon
from pipeline.log.partition_files import name_deleted
from pipeline.log.replacement import replace_segments
from pipeline.log.segment import Segment
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Offset, TopicPartition

CHECKPOINT_INTERVAL_MS = 60_000
CLOSE_TIMEOUT_S = 300.0
"""How long a stop waits for a disk. Logs that are not on the disk by then count as suspect after a loss of power."""

logger = get_logger(__name__)


class LogDirectory:
    """An open log dir, created by `open_log_directory`."""

    def __init__(
        self,
        path: Path,
        files: Files,
        config: LogConfig,
        lock: FileLock,
        rng: random.Random,
        now_ms: int,
        *,
        directory_id: uuid.UUID,
    ) -> None:
        self.path = path
        self.id = directory_id
        self.config = config
        self.failed: dict[TopicPartition, PipelineError] = {}
        self.undeleted: set[TopicPartition] = set()
        """Partitions of `failed` whose logs only could not be deleted."""
        self.begun: set[TopicPartition] = set()
        """Logs whose creation failed for lack of space or descriptors, and whose files could not be removed."""
        self.foreign: list[Path] = []
        """Entries with the name of a partition, or of a deleted one, that no broker created: left alone."""
        self.failure: StorageError | None = None
        self.refusal: DiskFullError | None = None
        """The last write that was refused for lack of room, until somebody takes note of it."""
        self.may_lack_tails = False
        """True if the machine lost power since the logs were written."""
        self.files = files
        self._lock = lock
        self.rng = rng
        self._logs: dict[TopicPartition, UnifiedLog] = {}
        self.set_aside = LogsSetAside(files, path)
        self.moving = threading.Lock()
        """The first of the locks in the table of `pipeline.log.locks`."""
        self.checkpoints = OffsetCheckpoints(files, path, self._logs, self.failed.keys())
        self._checkpointed_ms = self._looked_ms = now_ms
        self._deletions = Deletions(files)
        self.served = ServedReplicas(files, path)

    @property
    def logs(self) -> MappingProxyType[TopicPartition, UnifiedLog]:
        """All open logs, a live view."""
        return MappingProxyType(self._logs)

    def is_in_the_way(self, topic_partition: TopicPartition) -> bool:
        """Return True if something that is no log bears the name of this partition. Raises StorageError."""
        is_log = topic_partition in self._logs or topic_partition in self.failed or topic_partition in self.begun
        path = self.path / str(topic_partition)
        return not is_log and (path in self.foreign or self.files.exists(path))  # a link may lead nowhere

    def volume(self) -> Volume:
        """The space of its disk. Raises StorageError."""
        with self.noticing_failure():
            return self.files.volume(self.path)

    def add(self, log: UnifiedLog) -> None:
        """Add a log that was opened or created."""
        log.on_failure = self._take_offline
        log.on_full = self._note_refusal
        log.on_moving_back = self._checkpoint_move
        self._logs[log.topic_partition] = log

    def _take_offline(self, error: StorageError) -> None:
        """Take the directory and its logs offline after the disk failed."""
        if self.failure is not None:
            return
        self.failure = error
        logger.error("log_dir_offline", log_dir=str(self.path), error=str(error))
        for log in list(self._logs.values()):
            abandon(log, f"its log dir is offline: {error}")

    def _note_refusal(self, error: DiskFullError) -> None:
        self.refusal = error

    def _check_online(self) -> None:
        if self.failure is not None:
            raise StorageError(self.failure.path, self.failure.reason)

    @contextmanager
    def noticing_failure(self) -> Iterator[None]:
        """Take the directory offline if the disk refuses something, but not for a lack of space or an odd entry."""
        self._check_online()
        try:
            yield
        except DiskFullError as error:
            self._note_refusal(error)
            raise
        except OddEntryError:
            raise
        except StorageError as error:
            self._take_offline(error)
            raise

    def create(
        self,
        topic_partition: TopicPartition,
        *,
        now_ms: int,
        topic_id: uuid.UUID | None = None,
        config: LogConfig | None = None,
    ) -> UnifiedLog:
        """Create one log, as `create_all` does."""
        (log,) = self.create_all([NewLog(topic_partition=topic_partition, topic_id=topic_id, config=config)], now_ms)
        return log

    def create_all(self, new: Sequence[NewLog], now_ms: int) -> list[UnifiedLog]:
        """Create empty logs; a crash may undo that for logs without a flush. Raises ValueError if one exists, and
        StorageError: none is created then.
        """
        names = [wanted.topic_partition for wanted in new]
        for name in names:
            if name in self._logs or name in self.failed:
                raise ValueError(f"there is a log of {name}")
            self.checkpoints.forget(name)
        with self.noticing_failure():
            self.checkpoints.write(*self.checkpoints.kinds_naming(names))
            self.remove_begun(names)
            try:
                logs = [create_log(self.files, self.path, each, self.config, now_ms=now_ms) for each in new]
                self.files.sync_directory(self.path)
            except DiskFullError:
                self.begun.update(name for name in names if self.files.exists(self.path / str(name)))
                with suppress(DiskFullError):
                    self.remove_begun(names)
                raise
        for log in logs:
            self.add(log)
        return logs

    def remove_begun(self, names: Iterable[TopicPartition]) -> None:
        """Remove the files of logs that could not be created. Raises StorageError."""
        for name in self.begun.intersection(names):
            self.files.remove_tree(self.path / str(name))
            self.begun.discard(name)

    def delete(self, topic_partition: TopicPartition, now_ms: int, topic_id: uuid.UUID | None = None) -> None:
        """Delete one log, as `delete_all` does."""
        self.delete_all([LogName(topic_partition, topic_id)], now_ms)

    def delete_all(self, names: Iterable[LogName], now_ms: int) -> None:
        """Delete the logs of these names, also those that failed or were set aside; missing ones are skipped.

        Regions handed out stay readable. Raises StorageError.
        """
        deleted: dict[Path, int] = {}
        parents: set[Path] = set()
        gone: list[ReplicaId] = []
        try:
            for name in names:
                self._end_use(name)
                with self.moving:
                    found = self._take_out(name)
                    if found is None:
                        continue
                    self._check_online()
                    source, delay_ms = found
                    unique = uuid.UUID(int=self.rng.getrandbits(128), version=4)
                    target = self.path / name_deleted(name.topic_partition, unique)
                    if self._rename_deleted(name, source, target):
                        deleted[target] = delay_ms
                    if name.topic_id is not None:
                        gone.append(ReplicaId(name.topic_id, name.topic_partition.partition))
                    if source.parent != self.path:
                        parents.add(source.parent)
            if deleted or parents:
                with self.noticing_failure():
                    self.files.sync_directory(self.path)
                    for parent in parents:
                        self.set_aside.remove_empty(parent)
        finally:
            self.served.discard(gone)
            for path, delay_ms in deleted.items():
                self._deletions.add(now_ms + delay_ms, [path])

    def _rename_deleted(self, name: LogName, source: Path, target: Path) -> bool:
        """Return False if the directory is gone: an operator removed it. A log that cannot be renamed for want of space
        stays failed, or set aside, to be deleted later. Raises StorageError.
        """
        with self.noticing_failure():
            if not self.files.exists(source):
                return False
            try:
                self.files.rename(source, target)
            except DiskFullError as error:
                if source.parent == self.path:
                    self.failed[name.topic_partition] = error
                    self.undeleted.add(name.topic_partition)
                else:
                    self.set_aside.keep(name, source)
                raise
        return True

    def _end_use(self, name: LogName) -> None:
        """End the use of a log to be deleted: no late flush may write into a recreated log of the same name."""
        log = self._logs.get(name.topic_partition)
        if log is not None and log.topic_id == name.topic_id and name not in self.set_aside.paths:
            abandon(log, "the partition was deleted")
            with log.flusher.lock:  # a flush that is under way writes by the names of files
                pass
            drop_files(log)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a log, open or failed, that is deleted or moved away."""
        self._logs.pop(topic_partition, None)
        self.failed.pop(topic_partition, None)
        self.checkpoints.forget(topic_partition)

    def _take_out(self, name: LogName) -> tuple[Path, int] | None:
        """Forget a log; returns its directory and how long (ms) its files stay. None if there is no such log."""
        place, log = self.path / str(name.topic_partition), self._logs.get(name.topic_partition)
        if name in self.set_aside.paths:
            return self.set_aside.forget(name), self.config.delete_delay_ms
        if log is not None and log.topic_id == name.topic_id:
            self.forget(name.topic_partition)
            return place, log.config.delete_delay_ms
        if name.topic_partition in self.failed and name_of_failed(self.files, self.path, name.topic_partition) == name:
            self.undeleted.discard(name.topic_partition)
            self.forget(name.topic_partition)
            return place, self.config.delete_delay_ms
        return None

    def delete_segments(self, expired: Mapping[UnifiedLog, Sequence[Segment]], now_ms: int) -> None:
        """Rename the files of segments from `take_expired`. To be called in a thread. Raises StorageError."""
        self._deletions.add_segments(expired)
        self._rename_expired(now_ms)

    def _rename_expired(self, now_ms: int) -> None:
        try:
            self._deletions.rename_segments(now_ms, self.checkpoint_log_start_offsets)
        except DiskFullError:
            raise
        except StorageError:
            self._check_online()  # else the whole log was deleted meanwhile

    def replace_segments(
        self, log: UnifiedLog, base_offset: int, end_offset: int, now_ms: int, truncations: int
    ) -> bool:
        """Replace cleaned segments (`replace_segments`), in a thread; False if the old segments are gone."""
        replaced = replace_segments(log, base_offset, end_offset, now_ms, truncations)
        if replaced is None:
            return False
        self._deletions.add(now_ms + log.config.delete_delay_ms, replaced)
        return True

    def checkpoint_clean_offsets(self) -> None:
        """Checkpoint how far each log has been compacted. Raises StorageError."""
        with self.noticing_failure():
            self.checkpoints.write(CLEAN_OFFSETS)

    def checkpoint_log_start_offsets(self) -> None:
        """Return once all log start offsets would survive a crash. Raises StorageError."""
        with self.noticing_failure():
            self.checkpoints.write(LOG_START_OFFSETS)

    def checkpoint_high_watermarks(self, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Checkpoint the high watermarks of these logs; those of others stay as they were. Raises StorageError."""
        self.checkpoints.take_high_watermarks(offsets)
        with self.noticing_failure():
            self.checkpoints.write(HIGH_WATERMARKS)

    def high_watermark(self, log: UnifiedLog) -> Offset:
        """The last checkpointed high watermark of a log here, within the offsets of the log."""
        return self.checkpoints.high_watermark(log)

    def _checkpoint_move(self, log: UnifiedLog) -> None:
        """Rewrite the checkpoints that are ahead of a log whose offsets moved back. Raises StorageError."""
        behind = self.checkpoints.moved_back(log)
        with self.noticing_failure():
            self.checkpoints.write(*behind)

    def flush_due(self, now_ms: int) -> None:
        """Flush the logs that are due, and checkpoint the recovery points from time to time.

        Also closes unused files, and unlinks files that were deleted long enough ago. To be called about once a second,
        in a thread if the caller must not wait for the disk. Everything is due if the clock was set back since the last
        call. A flush that fails takes the directory offline; one that lacks space or a descriptor is tried again. Both
        are logged, not raised. Raises StorageError if the checkpoint or the unlinking fails.
        """
        if self.failure is not None:
            return
        # copied in one step: a garbage collection while a list of pairs is made may let another thread add logs
        for topic_partition, log in dict(self._logs).items():
            if log.is_flush_due(now_ms):
                try:
                    log.flush()
                except DiskFullError as error:
                    logger.error("log_not_flushed", topic_partition=str(topic_partition), error=str(error))
                except StorageError:
                    logger.exception("log_offline", topic_partition=str(topic_partition))
            release_files(log)
        was_set_back, self._looked_ms = now_ms < self._looked_ms, now_ms
        with self.noticing_failure():
            self._deletions.remove_due(now_ms, is_all_due=was_set_back)
            self._rename_expired(now_ms)
            if was_set_back or now_ms - self._checkpointed_ms >= CHECKPOINT_INTERVAL_MS:
                self._checkpointed_ms = now_ms
                self.checkpoints.write(RECOVERY_POINTS, LOG_START_OFFSETS)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Bring all logs to disk, write the mark of a clean shutdown (`clean_mark`), and release the directory.

        The mark leaves out failed and late logs; an offline log dir gets none. Raises the first StorageError, but none
        of a log that failed alone, after all logs are closed.
        """
        try:
            self._check_online()
            closed = close_all(list(self._logs.values()), timeout_s)
            self.checkpoints.write(RECOVERY_POINTS, LOG_START_OFFSETS)
            if self.failure is None:
                write_mark(self.files, self.path, closed.unclosed | self.failed.keys())
        finally:
            self.release()
        if closed.error is not None:
            raise closed.error

    def release(self) -> None:
        """Release the lock for the next process, without access to the disk."""
        self._lock.release()
