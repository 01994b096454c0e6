"""All logs of one broker: a directory with one directory for each partition.

Invariants:

- One process at a time: the lock file is held from open to close.
- The directory belongs to one broker of one cluster; that of another one is refused. Its own id, made when it is first
  taken, stays with it (KIP-858): who holds the lock may say that whoever named this id is dead.
- The mark of a clean shutdown is written last, after every log was brought to disk, and removed before anything else
  is done. So whatever happens in between, the next start checks the logs.
- A partition's directory is renamed before its files are removed: a deletion that was cut off is finished at the next
  start and never leaves half a log.
- A partition that cannot be opened is named in `failed` and leaves the others alone.
- Once the disk has failed under any of its logs, the directory is offline for good: `failure` says why, and all its
  logs refuse every call. What a failed disk still holds is found out by the next start alone.
- A log start offset is checkpointed before the segments before it lose their files. A checkpoint never tells of an
  earlier log of the same name.
- Files of deleted segments and partitions are renamed, and unlinked after the delay in the log's settings or at the
  next start.
"""

import random
import threading
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import structlog

from pipeline.errors import ConfigurationError, DiskFullError, PipelineError, StorageError
from pipeline.log.checkpoint import (
    CLEAN_OFFSETS,
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    TAIL_LOST,
    encode_offsets,
    read_offsets,
    replace_file,
)
from pipeline.log.config import LogConfig
from pipeline.log.directory_identity import is_same_boot, note_boot, take_ownership
from pipeline.log.files import FileLock, Files, Volume
from pipeline.log.loader import create_log, load_log
from pipeline.log.rewriting import note_failure
from pipeline.log.segment import Segment
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Offset, TopicPartition

LOCK = ".lock"
CHECKPOINT_INTERVAL_MS = 60_000
MAX_CLOSING_THREADS = 16
LOGS_PER_CLOSING_THREAD = 32

_CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, CLEAN_OFFSETS, HIGH_WATERMARKS)

_DELETED_SUFFIX = "-delete"
_LOGGER = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLog:
    """A log that is to be made."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID | None = None
    config: LogConfig | None = None
    """None: that of the directory."""
    is_new: bool = True
    """Was the partition never anywhere?"""


class LogDirectory:
    """The open directory. Made by `LogDirectory.open`."""

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
        self.failure: StorageError | None = None
        self._files = files
        self._lock = lock
        self._random = rng
        self._logs: dict[TopicPartition, UnifiedLog] = {}
        self._checkpointing = threading.Lock()
        self._checkpointed: dict[str, dict[TopicPartition, Offset]] = {}
        self._high_watermarks: dict[TopicPartition, Offset] = {}
        self._checkpointed_ms = now_ms
        self._deleted: list[tuple[int, Sequence[Path]]] = []

    @classmethod
    def open(
        cls,
        path: Path,
        files: Files,
        config: LogConfig,
        *,
        broker_id: BrokerId,
        cluster_id: str,
        rng: random.Random,
        now_ms: int,
    ) -> "LogDirectory":
        """Take the directory, making it if there is none, and open all partitions in it, recovering what needs it.

        Raises ConfigurationError if another process or another broker has it, StorageError.
        """
        if not files.exists(path):
            files.make_directory(path)
            files.sync_directory(path.parent)
        lock = files.lock(path / LOCK)
        if lock is None:
            raise ConfigurationError("log.dirs", f"{path} is in use by another process")
        try:
            directory_id = take_ownership(files, path, broker_id, cluster_id, rng)
            directory = cls(path, files, config, lock, rng, now_ms, directory_id=directory_id)
            directory._load(now_ms)
        except BaseException:
            lock.release()
            raise
        return directory

    @property
    def logs(self) -> Mapping[TopicPartition, UnifiedLog]:
        """All open logs, a live view."""
        return MappingProxyType(self._logs)

    def volume(self) -> Volume:
        """The space of its disk. Raises StorageError."""
        with self._noticing_failure():
            return self._files.volume(self.path)

    def _load(self, now_ms: int) -> None:
        clean = self._files.exists(self.path / CLEAN_SHUTDOWN)
        names = self._files.names(self.path)
        is_other_boot = not is_same_boot(self._files, self.path)
        may_lack_tails = is_other_boot and not clean
        if is_other_boot and (clean or not any(map(parse_directory_name, names))):
            note_boot(self._files, self.path)
        self._files.unlink(self.path / CLEAN_SHUTDOWN)
        self._files.sync_directory(self.path)
        for name in _CHECKPOINTS:
            self._checkpointed[name] = read_offsets(self._files, self.path / name)
        self._high_watermarks = dict(self._checkpointed[HIGH_WATERMARKS])
        for name in names:
            if name.endswith(_DELETED_SUFFIX):
                self._files.remove_tree(self.path / name)
                continue
            topic_partition = parse_directory_name(name)
            if topic_partition is None:
                continue
            try:
                log = load_log(
                    self._files,
                    self.path / name,
                    topic_partition,
                    self.config,
                    recovery_point=self._checkpointed[RECOVERY_POINTS].get(topic_partition, Offset(0)),
                    log_start_offset=self._checkpointed[LOG_START_OFFSETS].get(topic_partition, Offset(0)),
                    clean=clean,
                    now_ms=now_ms,
                )
            except PipelineError as error:
                self.failed[topic_partition] = error
                note_failure(self._files, self.path / name)
                _LOGGER.exception("log_failed", topic_partition=str(topic_partition))
            else:
                if log.topic_id is None and not log.log_end_offset:
                    self._files.remove_tree(log.directory)  # a crash cut off its creation
                    continue
                if may_lack_tails or self._high_watermarks.get(topic_partition, 0) > log.log_end_offset:
                    log.may_lack_tail = True
                if topic_partition in self._high_watermarks:
                    self._high_watermarks[topic_partition] = self.high_watermark(log)
                clean_offset = self._checkpointed[CLEAN_OFFSETS].get(topic_partition)
                if clean_offset is not None:  # a log that lost its end in a crash may grow past it again
                    log.clean_offset = min(clean_offset, log.log_end_offset)
                self._add(log)

    def settle_tails(self) -> None:
        """All logs that may lack their tail were taken care of: no later start asks for it. Raises StorageError."""
        with self._noticing_failure():
            for log in list(self._logs.values()):
                if log.may_lack_tail and self._files.exists(log.directory / TAIL_LOST):
                    self._files.unlink(log.directory / TAIL_LOST)
                    self._files.sync_directory(log.directory)
            self._checkpoint(RECOVERY_POINTS, HIGH_WATERMARKS)
            if not is_same_boot(self._files, self.path):
                note_boot(self._files, self.path)

    def _add(self, log: UnifiedLog) -> None:
        log.on_failure = self._take_offline
        log.on_moving_back = partial(self._checkpoint_move, log)
        self._logs[log.topic_partition] = log

    def _take_offline(self, error: StorageError) -> None:
        """The disk failed."""
        if self.failure is not None:
            return
        self.failure = error
        _LOGGER.error("log_dir_offline", log_dir=str(self.path), error=str(error))
        for log in list(self._logs.values()):
            log.abandon(f"its log dir is offline: {error}")

    def _check_online(self) -> None:
        if self.failure is not None:
            raise StorageError(self.failure.path, self.failure.reason)

    @contextmanager
    def _noticing_failure(self) -> Iterator[None]:
        """Any refusal of the disk but for a lack of space takes the directory offline."""
        self._check_online()
        try:
            yield
        except DiskFullError:
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
        """As `create_all`, of one."""
        (log,) = self.create_all([NewLog(topic_partition=topic_partition, topic_id=topic_id, config=config)], now_ms)
        return log

    def create_all(self, new: Sequence[NewLog], now_ms: int) -> list[UnifiedLog]:
        """New, empty logs.

        A crash may take back those that nothing was flushed to. Raises ValueError if there is one of these names,
        StorageError; none is there then.
        """
        names = [wanted.topic_partition for wanted in new]
        for name in names:
            if name in self._logs or name in self.failed:
                raise ValueError(f"there is a log of {name}")
            self._high_watermarks.pop(name, None)
        with self._noticing_failure():
            self._checkpoint(
                *(kind for kind, known in self._checkpointed.items() if not known.keys().isdisjoint(names))
            )
            logs = self._create_all(new, now_ms)
            self._files.sync_directory(self.path)
        for log in logs:
            self._add(log)
        return logs

    def _create_all(self, new: Sequence[NewLog], now_ms: int) -> list[UnifiedLog]:
        """The files of all; where the disk is full nothing of them is left."""
        paths = [self.path / str(wanted.topic_partition) for wanted in new]
        try:
            return [
                create_log(
                    self._files,
                    path,
                    wanted.topic_partition,
                    wanted.config or self.config,
                    topic_id=wanted.topic_id,
                    now_ms=now_ms,
                )
                for path, wanted in zip(paths, new, strict=True)
            ]
        except DiskFullError:
            for path in paths:
                if self._files.exists(path):
                    self._files.remove_tree(path)
            raise

    def delete(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Remove a log, also one that failed; none there is fine. Regions handed out stay readable.

        Raises StorageError.
        """
        log = self._logs.pop(topic_partition, None)
        self._high_watermarks.pop(topic_partition, None)
        delay_ms = self.config.delete_delay_ms
        if log is not None:
            delay_ms = log.config.delete_delay_ms
            log.abandon("the partition was deleted")
        elif self.failed.pop(topic_partition, None) is None:
            return
        self._check_online()
        unique = uuid.UUID(int=self._random.getrandbits(128), version=4).hex
        deleted = self.path / f"{topic_partition}.{unique}{_DELETED_SUFFIX}"
        with self._noticing_failure():
            self._files.rename(self.path / str(topic_partition), deleted)
            self._files.sync_directory(self.path)
        self._deleted.append((now_ms + delay_ms, [deleted]))

    def delete_segments(self, expired: Mapping[UnifiedLog, Sequence[Segment]], now_ms: int) -> None:
        """Rename the files of segments that `UnifiedLog.take_expired` took out. To be called in a thread.

        Raises StorageError.
        """
        self.checkpoint_log_start_offsets()
        for log, segments in expired.items():
            try:
                retired = log.delete_segments(segments)
            except StorageError:
                self._check_online()  # else the whole log was deleted meanwhile
            else:
                self._deleted.append((now_ms + log.config.delete_delay_ms, retired))

    def replace_segments(
        self, log: UnifiedLog, base_offset: int, end_offset: int, now_ms: int, truncations: int
    ) -> bool:
        """As `UnifiedLog.replace_segments`: False if what was cleaned is no longer there. To be called in a thread."""
        replaced = log.replace_segments(base_offset, end_offset, now_ms, truncations)
        if replaced is None:
            return False
        self._deleted.append((now_ms + log.config.delete_delay_ms, replaced))
        return True

    def checkpoint_clean_offsets(self) -> None:
        """Write down how far each log has been compacted. Raises StorageError."""
        with self._noticing_failure():
            self._checkpoint(CLEAN_OFFSETS)

    def checkpoint_log_start_offsets(self) -> None:
        """Return once all log start offsets would survive a crash. Raises StorageError."""
        with self._noticing_failure():
            self._checkpoint(LOG_START_OFFSETS)

    def checkpoint_high_watermarks(self, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Write down the high watermarks of these logs; those of others stay as they were. Raises StorageError."""
        with self._checkpointing:  # an offset may have been taken before its log was truncated
            for name, log in list(self._logs.items()):
                if name in offsets:
                    self._high_watermarks[name] = min(offsets[name], log.log_end_offset)
        with self._noticing_failure():
            self._checkpoint(HIGH_WATERMARKS)

    def high_watermark(self, log: UnifiedLog) -> Offset:
        """Of one of its logs, as it was checkpointed last, within what the log holds."""
        checkpointed = self._high_watermarks.get(log.topic_partition, Offset(0))
        return min(max(checkpointed, log.log_start_offset), log.log_end_offset)

    def _checkpoint_move(self, log: UnifiedLog) -> None:
        """An offset of this log moved back: let no checkpoint tell of more. Raises StorageError."""
        name = log.topic_partition
        now = {
            RECOVERY_POINTS: log.recovery_point,
            LOG_START_OFFSETS: log.log_start_offset,
            CLEAN_OFFSETS: log.clean_offset or Offset(0),
            HIGH_WATERMARKS: log.log_end_offset,
        }
        behind = [kind for kind, offset in now.items() if self._checkpointed[kind].get(name, 0) > offset]
        with self._checkpointing:
            if name in self._high_watermarks:
                self._high_watermarks[name] = min(self._high_watermarks[name], log.log_end_offset)
        with self._noticing_failure():
            self._checkpoint(*behind)

    def flush_due(self, now_ms: int) -> None:
        """Flush the logs whose time has come, and checkpoint from time to time how far each log is on disk.

        Lets go of files that nobody needs, and unlinks what was deleted long enough ago. To be called about once a
        second, in a thread if the caller must not wait for the disk. A flush that fails takes the directory offline;
        that is logged, not raised. Raises StorageError if the checkpoint or the unlinking fails.
        """
        if self.failure is not None:
            return
        for topic_partition, log in list(self._logs.items()):
            if log.is_flush_due(now_ms):
                try:
                    log.flush()
                except StorageError:
                    _LOGGER.exception("log_offline", topic_partition=str(topic_partition))
            log.release_files()
        with self._noticing_failure():
            for entry in [entry for entry in self._deleted if entry[0] <= now_ms]:
                self._deleted.remove(entry)
                for path in entry[1]:
                    self._remove(path)
            if now_ms - self._checkpointed_ms >= CHECKPOINT_INTERVAL_MS:
                self._checkpointed_ms = now_ms
                self._checkpoint(RECOVERY_POINTS, LOG_START_OFFSETS)

    def _remove(self, path: Path) -> None:
        if path.name.endswith(_DELETED_SUFFIX):
            self._files.remove_tree(path)
        else:
            self._files.unlink(path)

    def _checkpoint(self, *names: str) -> None:
        """Write these checkpoints anew if they changed."""
        with self._checkpointing:
            for name in names:
                logs = list(self._logs.items())
                if name == RECOVERY_POINTS:
                    offsets = {partition: log.recovery_point for partition, log in logs}
                elif name == CLEAN_OFFSETS:
                    offsets = {partition: log.clean_offset for partition, log in logs if log.clean_offset is not None}
                elif name == HIGH_WATERMARKS:
                    known = self._high_watermarks
                    offsets = {partition: known[partition] for partition, _ in logs if partition in known}
                else:
                    offsets = {partition: log.log_start_offset for partition, log in logs if log.log_start_offset}
                if offsets != self._checkpointed[name]:
                    replace_file(self._files, self.path / name, encode_offsets(offsets))
                    self._checkpointed[name] = offsets

    def close(self) -> None:
        """Bring all logs to disk and mark the shutdown as clean, unless a log failed. Lets the next process in.

        Raises the first StorageError; all logs are closed also then.
        """
        error = self.failure
        if error is not None:
            self.release()
            raise error
        error = _close_all(list(self._logs.values()))
        try:
            self._checkpoint(RECOVERY_POINTS, LOG_START_OFFSETS)
            if error is None and not self.failed:
                replace_file(self._files, self.path / CLEAN_SHUTDOWN, b"")
        finally:
            self.release()
        if error is not None:
            raise error

    def release(self) -> None:
        """Let the next process in, without a word to the disk."""
        self._lock.release()


def _close_all(logs: Sequence[UnifiedLog]) -> StorageError | None:
    """Close them, many of them in several threads: they wait for the disk, which syncs many files as fast as one.

    Returns the first error. The threads do not keep a process alive that has waited long enough.
    """
    unclosed = deque(logs)
    errors: list[StorageError] = []

    def close_some() -> None:
        while unclosed:
            with suppress(IndexError):
                log = unclosed.popleft()
                try:
                    log.close()
                except StorageError as error:
                    _LOGGER.exception("log_not_closed", topic_partition=str(log.topic_partition))
                    errors.append(error)

    count = min(len(logs) // LOGS_PER_CLOSING_THREAD, MAX_CLOSING_THREADS)
    threads = [threading.Thread(target=close_some, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    close_some()
    for thread in threads:
        thread.join()
    return errors[0] if errors else None


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition whose directory has this name, None if it is none's."""
    topic, dash, partition = name.rpartition("-")
    if not (topic and dash and partition.isascii() and partition.isdecimal()):
        return None
    if str(int(partition)) != partition:
        return None
    return TopicPartition(topic, int(partition))
