"""All logs of one broker: a directory with one directory for each partition.

Invariants:

- One process at a time: the lock file is held from open to close.
- The directory belongs to one broker of one cluster; that of another one is refused. Its own id, made when it is first
  taken, stays with it (KIP-858): who holds the lock may say that whoever named this id is dead.
- The mark of a clean shutdown is written last, and removed before anything else is done. It names the logs that were
  not brought to disk (`clean_mark`). So whatever happens in between, the next start checks all logs, else those named.
- A partition's directory is renamed before its files are removed: a deletion that was cut off is finished at the next
  start and never leaves half a log.
- A partition that cannot be opened is named in `failed` and leaves the others alone. Its checkpoints stay as they are
  until a later start opens it, or it is deleted.
- A start removes only what the broker itself was removing, or had begun to make. What an operator keeps here under a
  similar name is named in `foreign` and left alone.
- Once the disk has failed under any of its logs, the directory is offline for good: `failure` says why, and all its
  logs refuse every call. What a failed disk still holds is found out by the next start alone.
- A log is removed if its partition and its topic id are named, never for its name alone. One whose name another topic
  has taken is set aside (`logs_set_aside`).
- A log without a topic id may be any topic's, unless the power was lost: the id may have been lost with it. Such a log
  belongs to a topic whose replica was served here (`served_replicas`), and to no other.
- A log start offset is checkpointed before the segments before it lose their files. A checkpoint never tells of an
  earlier log of the same name.
- Files of deleted segments and partitions are renamed, and unlinked after the delay in the log's settings or at the
  next start.
"""

import random
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType

import structlog

from pipeline.errors import ConfigurationError, DiskFullError, OddEntryError, PipelineError, StorageError
from pipeline.log.checkpoint import (
    CLEAN_OFFSETS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_partition_metadata,
)
from pipeline.log.config import LogConfig
from pipeline.log.directories.clean_mark import note_tails, read_mark, remove_mark, write_mark
from pipeline.log.directories.deletions import Deletions
from pipeline.log.directories.identity import is_same_boot, note_boot, take_ownership
from pipeline.log.directories.logs_set_aside import HeldLog, LogName, LogsSetAside
from pipeline.log.directories.offset_checkpoints import OffsetCheckpoints
from pipeline.log.directories.served_replicas import ReplicaId, ServedReplicas, replicas_of
from pipeline.log.directories.shutdown import close_all
from pipeline.log.directories.tails import note_failed_tails, settle_tail
from pipeline.log.files import FileLock, Files, Volume
from pipeline.log.held_files import drop_files, release_files
from pipeline.log.loader import NewLog, create_logs, load_log
from pipeline.log.log_failure import abandon
from pipeline.log.partition_files import (
    is_deleted,
    is_own_file,
    looks_deleted,
    may_be_partition,
    name_deleted,
    parse_directory_name,
)
from pipeline.log.replacement import replace_segments
from pipeline.log.segment import Segment
from pipeline.log.unified_log import UnifiedLog
from pipeline.log.unsynced import note_failure
from pipeline.model import BrokerId, Offset, TopicPartition

CHECKPOINT_INTERVAL_MS = 60_000
CLOSE_TIMEOUT_S = 300.0
"""How long a stop waits for a disk. Logs that are not on the disk by then count as suspect after a loss of power."""

logger = structlog.get_logger()


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
        self._undeleted: set[TopicPartition] = set()
        """Of `failed`, logs that were about to be deleted: nothing else is wrong with them."""
        self._begun: set[TopicPartition] = set()
        """Logs whose creation the disk had no room for, nor the process a descriptor to remove what was made."""
        self.foreign: list[Path] = []
        """Entries that bear the name of a partition, or of a deleted one, and that no broker made: left alone."""
        self.failure: StorageError | None = None
        self._may_lack_tails = False
        """Did the machine lose power since the logs were written?"""
        self._files = files
        self._lock = lock
        self._random = rng
        self._logs: dict[TopicPartition, UnifiedLog] = {}
        self.set_aside = LogsSetAside(files, path)
        self._placing = threading.Lock()
        """Held while a log's directory gets another name."""
        self._checkpoints = OffsetCheckpoints(files, path, self._logs, self.failed.keys())
        self._checkpointed_ms = self._looked_ms = now_ms
        self._deletions = Deletions(files)
        self.served = ServedReplicas(files, path)

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
            raise ConfigurationError("log.dirs", f"{path} is in use by another process, or named twice, once by a link")
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

    def is_in_the_way(self, topic_partition: TopicPartition) -> bool:
        """Return True if something that is no log bears the name of this partition. Raises StorageError."""
        is_log = topic_partition in self._logs or topic_partition in self.failed or topic_partition in self._begun
        path = self.path / str(topic_partition)
        return not is_log and (path in self.foreign or self._files.exists(path))  # a link may lead nowhere

    def volume(self) -> Volume:
        """The space of its disk. Raises StorageError."""
        with self._noticing_failure():
            return self._files.volume(self.path)

    def _load(self, now_ms: int) -> None:
        unclosed = read_mark(self._files, self.path)
        clean = unclosed is not None
        names = self._files.names(self.path)
        is_other_boot = not is_same_boot(self._files, self.path)
        self._may_lack_tails = is_other_boot and not clean
        if is_other_boot:
            note_tails(self._files, self.path, unclosed or ())
        if clean or not any(map(parse_directory_name, names)):
            note_boot(self._files, self.path)
        remove_mark(self._files, self.path)
        self._checkpoints.read()
        for name in names:
            topic_partition = parse_directory_name(name)
            if topic_partition is not None:
                self._open_entry(
                    self.path / name, topic_partition, now_ms, clean=unclosed is not None and name not in unclosed
                )
            elif looks_deleted(name):
                self._clear_away(self.path / name)
        for log in self._logs.values():
            log.may_lack_tail |= self._may_lack_tails and not log.is_flushed_first
        self.set_aside.find(names)

    def _clear_away(self, path: Path) -> None:
        """Finish the deletion of a partition; leave alone what merely has such a name."""
        try:
            if is_deleted(path.name) and self._files.is_directory(path):
                self._files.remove_tree(path)
            else:
                self._leave_alone(path)
        except StorageError:
            logger.exception("deleted_log_not_removed", path=str(path))

    def _leave_alone(self, path: Path) -> None:
        self.foreign.append(path)
        logger.warning("no_log_left_alone", path=str(path), reason="no broker made it; move it out of the log dir")

    def _open_entry(self, path: Path, topic_partition: TopicPartition, now_ms: int, *, clean: bool) -> None:
        """Load the log in a directory of a partition's name, if it is one. Any error fails this partition alone."""
        before = self.failed.get(topic_partition)
        try:
            if self._files.is_directory(path) and may_be_partition(self._files.names(path)):
                self._load_partition(path, topic_partition, now_ms, clean=clean)
            else:
                self._leave_alone(path)
        except Exception as error:
            if not isinstance(error, PipelineError):
                error = StorageError(str(path), f"cannot be opened: {error!r}")
            self.failed[topic_partition] = error
            note_failure(self._files, path)
            if type(error) is not type(before):
                logger.exception("log_failed", topic_partition=str(topic_partition))
        else:
            self.failed.pop(topic_partition, None)

    def _load_partition(self, path: Path, topic_partition: TopicPartition, now_ms: int, *, clean: bool) -> None:
        log = load_log(
            self._files,
            path,
            topic_partition,
            self.config,
            recovery_point=self._checkpoints.written(RECOVERY_POINTS, topic_partition) or Offset(0),
            log_start_offset=self._checkpoints.written(LOG_START_OFFSETS, topic_partition) or Offset(0),
            clean=clean,
            now_ms=now_ms,
        )
        if log.topic_id is None and not log.log_end_offset and all(map(is_own_file, self._files.names(path))):
            self._files.remove_tree(path)  # a crash cut off its creation
            return
        self._checkpoints.adopt(log)
        self._add(log)

    def note_served(self, logs: Iterable[UnifiedLog]) -> None:
        """Return once it is on the disk that these logs are served. Raises StorageError."""
        with self._noticing_failure():
            self.served.add(replicas_of(logs))

    def settle_tails(self, directories: Collection[uuid.UUID], judged: Mapping[TopicPartition, uuid.UUID]) -> None:
        """Note that the logs of `judged`, by their topic ids, that are lost or may lack their tail were taken care of.

        No later start asks for them. Any other log that may lack its tail is noted: its topic may come back.
        `directories` are the ids of all log dirs of the broker. Raises StorageError.
        """
        with self._noticing_failure():
            for log in list(self._logs.values()):
                if log.may_lack_tail:
                    with self._placing:
                        if self._logs.get(log.topic_partition) is log:  # else deleted, or set aside
                            topic_id = judged[log.topic_partition] if self._is_named(log, judged) else None
                            settle_tail(self._files, log, topic_id)
            for name, topic_id in judged.items():
                with self._placing:
                    self.set_aside.settle_tail(LogName(name, topic_id))
            self.served.discard(self._missing(judged))
            if self._may_lack_tails:
                note_failed_tails(self._files, [self.path / str(name) for name in self.failed if name not in judged])
            self._checkpoints.write(RECOVERY_POINTS, HIGH_WATERMARKS, CLEAN_OFFSETS)
            self.served.settle(directories, list(self._logs.values()))
            note_boot(self._files, self.path)

    def _missing(self, judged: Mapping[TopicPartition, uuid.UUID]) -> Iterable[ReplicaId]:
        """The replicas whose logs are not here."""
        for name, topic_id in judged.items():
            log = self._logs.get(name)
            is_open = log is not None and self._is_named(log, judged)
            if not is_open and name not in self.failed and LogName(name, topic_id) not in self.set_aside.paths:
                yield ReplicaId(topic_id, name.partition)

    def _is_named(self, log: UnifiedLog, judged: Mapping[TopicPartition, uuid.UUID]) -> bool:
        """Return True if `judged` names this log by its topic id, or if a log without one may be the named topic's."""
        topic_id = judged.get(log.topic_partition)
        if topic_id is None or log.topic_id is not None:
            return topic_id is not None and log.topic_id == topic_id
        return not self._has_lost_other_id(log, topic_id)

    def _has_lost_other_id(self, log: UnifiedLog, topic_id: uuid.UUID) -> bool:
        """Return True if a log without a topic id lost another one than this with the power."""
        replica = ReplicaId(topic_id, log.topic_partition.partition)
        return log.may_lack_tail and self.served.rule_out(replica, list(self._logs.values()))

    def _add(self, log: UnifiedLog) -> None:
        log.on_failure = self._take_offline
        log.on_moving_back = partial(self._checkpoint_move, log)
        self._logs[log.topic_partition] = log

    def _take_offline(self, error: StorageError) -> None:
        """The disk failed."""
        if self.failure is not None:
            return
        self.failure = error
        logger.error("log_dir_offline", log_dir=str(self.path), error=str(error))
        for log in list(self._logs.values()):
            abandon(log, f"its log dir is offline: {error}")

    def _check_online(self) -> None:
        if self.failure is not None:
            raise StorageError(self.failure.path, self.failure.reason)

    @contextmanager
    def _noticing_failure(self) -> Iterator[None]:
        """Any refusal of the disk but for a lack of space, or for an odd entry, takes the directory offline."""
        self._check_online()
        try:
            yield
        except (DiskFullError, OddEntryError):
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
            self._checkpoints.forget(name)
        with self._noticing_failure():
            self._checkpoints.write(*self._checkpoints.kinds_naming(names))
            self._remove_begun(names)
            try:
                logs = create_logs(self._files, self.path, new, self.config, now_ms=now_ms)
                self._files.sync_directory(self.path)
            except DiskFullError:
                self._begun.update(name for name in names if self._files.exists(self.path / str(name)))
                with suppress(DiskFullError):
                    self._remove_begun(names)
                raise
        for log in logs:
            self._add(log)
        return logs

    def _remove_begun(self, names: Iterable[TopicPartition]) -> None:
        """Remove what was made of logs that could not be created. Raises StorageError."""
        for name in self._begun.intersection(names):
            self._files.remove_tree(self.path / str(name))
            self._begun.discard(name)

    def held(self) -> list[HeldLog]:
        """All logs in the directory: open ones, those that failed, and those set aside. Raises StorageError."""
        held = [
            HeldLog(name=LogName(name, log.topic_id), path=log.directory, log=log)
            for name, log in dict(self._logs).items()
        ]
        held += [HeldLog(name=self._name_of_failed(name), path=self.path / str(name)) for name in list(self.failed)]
        aside = list(self.set_aside.paths.items())
        return held + [HeldLog(name=name, path=path, is_set_aside=True) for name, path in aside]

    def _name_of_failed(self, topic_partition: TopicPartition) -> LogName:
        try:
            topic_id = read_partition_metadata(self._files, self.path / str(topic_partition), is_on_disk=False)
        except StorageError:
            topic_id = None
        return LogName(topic_partition, topic_id)

    def is_displaced(self, name: LogName) -> bool:
        """Return True if a log of another topic has its place, or if it is set aside, or may be opened again."""
        is_kept = name in self.set_aside.paths or self._may_open_again(name.topic_partition)
        return is_kept or self._other_in_place(name) is not None

    def _may_open_again(self, topic_partition: TopicPartition) -> bool:
        """Return True if a log failed only for it could not be deleted, or because there was no room to repair it."""
        lacked_room = isinstance(self.failed.get(topic_partition), DiskFullError)
        return lacked_room or topic_partition in self._undeleted & self.failed.keys()

    def may_be_displaced(self, name: LogName) -> bool:
        """Return False if `is_displaced` surely is; asks no disk."""
        log = self._logs.get(name.topic_partition)
        is_other = log is not None and log.topic_id != name.topic_id
        return is_other or name.topic_partition in self.failed or name in self.set_aside.paths

    def _other_in_place(self, name: LogName) -> LogName | None:
        """The log of another topic that lies where this one belongs.

        A log without a topic id may be this one, unless this one is set aside or the log lost another id.
        """
        log, found = self._logs.get(name.topic_partition), None
        if log is not None:
            found = LogName(name.topic_partition, log.topic_id)
        elif name.topic_partition in self.failed:
            found = self._name_of_failed(name.topic_partition)
        if found is None or found.topic_id == name.topic_id:
            return None
        if found.topic_id is not None or name in self.set_aside.paths:
            return found
        has_lost_other = log is not None and name.topic_id is not None and self._has_lost_other_id(log, name.topic_id)
        return found if has_lost_other else None

    def make_way(self, topic_partition: TopicPartition, topic_id: uuid.UUID, now_ms: int) -> None:
        """Set a log of another topic id aside, and take back the one of this topic id if there is one, or if it may be
        opened again.

        Raises StorageError.
        """
        name = LogName(topic_partition, topic_id)
        with self._placing, self._noticing_failure():
            other = self._other_in_place(name)
            if other is None and self._may_open_again(topic_partition):
                self._undeleted.discard(topic_partition)
                with self._checkpoints.writing:
                    self._open_entry(self.path / str(topic_partition), topic_partition, now_ms, clean=False)
            if other is not None:
                log = self._logs.get(topic_partition)
                if log is not None:
                    self.set_aside.close(log)
                else:
                    start = self._checkpoints.written(LOG_START_OFFSETS, topic_partition)
                    self.set_aside.note_start(topic_partition, start or Offset(0))
                if other.topic_id is None:  # lost with the power: nobody can ask for this log but by a new id
                    other = LogName(topic_partition, uuid.UUID(int=self._random.getrandbits(128), version=4))
                self.set_aside.put(other)
                self._logs.pop(topic_partition, None)
                self.failed.pop(topic_partition, None)
                self._checkpoints.forget(topic_partition)
            is_free = topic_partition not in self._logs and topic_partition not in self.failed
            if is_free and name in self.set_aside.paths:
                with self._checkpoints.writing:
                    self._take_back(name, now_ms)

    def _take_back(self, name: LogName, now_ms: int) -> None:
        """Open a log that was set aside in its place. What checkpoints tell of another log there goes first."""
        topic_partition = name.topic_partition
        self._remove_begun([topic_partition])
        self._checkpoints.replace(topic_partition, self.set_aside.log_start_offset(name))
        self._open_entry(self.set_aside.take_back(name), topic_partition, now_ms, clean=False)
        logger.info("stray_taken_back", topic_partition=str(topic_partition), topic_id=str(name.topic_id))

    def delete(self, topic_partition: TopicPartition, now_ms: int, topic_id: uuid.UUID | None = None) -> None:
        """Delete one log, as `delete_all` does."""
        self.delete_all([LogName(topic_partition, topic_id)], now_ms)

    def delete_all(self, names: Iterable[LogName], now_ms: int) -> None:
        """Remove these logs, also ones that failed or were set aside; none there is fine, nor one of another topic.

        Regions handed out stay readable. Raises StorageError.
        """
        deleted: dict[Path, int] = {}
        parents: set[Path] = set()
        gone: list[ReplicaId] = []
        try:
            for name in names:
                self._end_use(name)
                with self._placing:
                    found = self._take_out(name)
                    if found is None:
                        continue
                    self._check_online()
                    source, delay_ms = found
                    unique = uuid.UUID(int=self._random.getrandbits(128), version=4)
                    target = self.path / name_deleted(name.topic_partition, unique)
                    if self._rename_deleted(name, source, target):
                        deleted[target] = delay_ms
                    if name.topic_id is not None:
                        gone.append(ReplicaId(name.topic_id, name.topic_partition.partition))
                    if source.parent != self.path:
                        parents.add(source.parent)
            if deleted or parents:
                with self._noticing_failure():
                    self._files.sync_directory(self.path)
                    for parent in parents:
                        self.set_aside.remove_empty(parent)
        finally:
            self.served.discard(gone)
            for path, delay_ms in deleted.items():
                self._deletions.add(now_ms + delay_ms, [path])

    def _rename_deleted(self, name: LogName, source: Path, target: Path) -> bool:
        """Return False if nothing is there: an operator removed it. A log that does not get the name for want of space
        is kept as one that failed, or was set aside, to be deleted later. Raises StorageError.
        """
        with self._noticing_failure():
            if not self._files.exists(source):
                return False
            try:
                self._files.rename(source, target)
            except DiskFullError as error:
                if source.parent == self.path:
                    self.failed[name.topic_partition] = error
                    self._undeleted.add(name.topic_partition)
                else:
                    self.set_aside.keep(name, source)
                raise
        return True

    def _end_use(self, name: LogName) -> None:
        """End the use of a log that is to be deleted: no flush of it meets one that is made anew under the name."""
        log = self._logs.get(name.topic_partition)
        if log is not None and log.topic_id == name.topic_id and name not in self.set_aside.paths:
            abandon(log, "the partition was deleted")
            with log.flusher.lock:  # a flush that is under way writes by the names of files
                pass
            drop_files(log)

    def _take_out(self, name: LogName) -> tuple[Path, int] | None:
        """Let go of a log: where it lies, and how long its files stay. None if there is no such log."""
        place, log = self.path / str(name.topic_partition), self._logs.get(name.topic_partition)
        if name in self.set_aside.paths:
            return self.set_aside.forget(name), self.config.delete_delay_ms
        if log is not None and log.topic_id == name.topic_id:
            del self._logs[name.topic_partition]
            self._checkpoints.forget(name.topic_partition)
            return place, log.config.delete_delay_ms
        if name.topic_partition in self.failed and self._name_of_failed(name.topic_partition) == name:
            del self.failed[name.topic_partition]
            self._undeleted.discard(name.topic_partition)
            self._checkpoints.forget(name.topic_partition)
            return place, self.config.delete_delay_ms
        return None

    def delete_segments(self, expired: Mapping[UnifiedLog, Sequence[Segment]], now_ms: int) -> None:
        """Rename the files of segments that `take_expired` took out. To be called in a thread.

        Raises StorageError.
        """
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
        """As `replace_segments`: False if what was cleaned is no longer there. To be called in a thread."""
        replaced = replace_segments(log, base_offset, end_offset, now_ms, truncations)
        if replaced is None:
            return False
        self._deletions.add(now_ms + log.config.delete_delay_ms, replaced)
        return True

    def checkpoint_clean_offsets(self) -> None:
        """Write down how far each log has been compacted. Raises StorageError."""
        with self._noticing_failure():
            self._checkpoints.write(CLEAN_OFFSETS)

    def checkpoint_log_start_offsets(self) -> None:
        """Return once all log start offsets would survive a crash. Raises StorageError."""
        with self._noticing_failure():
            self._checkpoints.write(LOG_START_OFFSETS)

    def checkpoint_high_watermarks(self, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Write down the high watermarks of these logs; those of others stay as they were. Raises StorageError."""
        self._checkpoints.take_high_watermarks(offsets)
        with self._noticing_failure():
            self._checkpoints.write(HIGH_WATERMARKS)

    def high_watermark(self, log: UnifiedLog) -> Offset:
        """Of one of its logs, as it was checkpointed last, within what the log holds."""
        return self._checkpoints.high_watermark(log)

    def _checkpoint_move(self, log: UnifiedLog) -> None:
        """An offset of this log moved back: let no checkpoint tell of more. Raises StorageError."""
        behind = self._checkpoints.moved_back(log)
        with self._noticing_failure():
            self._checkpoints.write(*behind)

    def flush_due(self, now_ms: int) -> None:
        """Flush the logs whose time has come, and checkpoint from time to time how far each log is on disk.

        Lets go of files that nobody needs, and unlinks what was deleted long enough ago. To be called about once a
        second, in a thread if the caller must not wait for the disk. Everything is due if the clock was set back since
        the last call: nobody knows how long it has waited. A flush that fails takes the directory offline; a flush
        that lacks space or a descriptor is tried again. Both are logged, not raised. Raises StorageError if the
        checkpoint or the unlinking fails.
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
        with self._noticing_failure():
            self._deletions.remove_due(now_ms, is_all_due=was_set_back)
            self._rename_expired(now_ms)
            if was_set_back or now_ms - self._checkpointed_ms >= CHECKPOINT_INTERVAL_MS:
                self._checkpointed_ms = now_ms
                self._checkpoints.write(RECOVERY_POINTS, LOG_START_OFFSETS)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Bring all logs to disk and mark the shutdown as clean for each log that is. Lets the next process in.

        Failed logs, and those that the disk takes longer for, are not marked; none is if the log dir is offline.
        Raises the first StorageError, but none of a log that failed alone; all other logs are closed also then.
        """
        try:
            self._check_online()
            closed = close_all(list(self._logs.values()), timeout_s)
            self._checkpoints.write(RECOVERY_POINTS, LOG_START_OFFSETS)
            if self.failure is None:
                write_mark(self._files, self.path, closed.unclosed | self.failed.keys())
        finally:
            self.release()
        if closed.error is not None:
            raise closed.error

    def release(self) -> None:
        """Let the next process in, without a word to the disk."""
        self._lock.release()
