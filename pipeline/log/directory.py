"""All logs of one broker: a directory with one directory for each partition.

Invariants:

- One process at a time: the lock file is held from open to close.
- The directory belongs to one broker of one cluster; that of another one is refused.
- The mark of a clean shutdown is written last, after every log was brought to disk, and removed before anything else
  is done. So whatever happens in between, the next start checks the logs.
- A partition's directory is renamed before its files are removed: a deletion that was cut off is finished at the next
  start and never leaves half a log.
- A partition that cannot be opened is named in `failed` and leaves the others alone.
"""

import random
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import structlog

from pipeline.errors import ConfigurationError, PipelineError, StorageError
from pipeline.log.checkpoint import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    decode_properties,
    encode_offsets,
    encode_partition_metadata,
    encode_properties,
    read_file,
    read_recovery_points,
    replace_file,
)
from pipeline.log.config import LogConfig
from pipeline.log.files import FileLock, Files
from pipeline.log.loader import load_log
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Offset, TopicPartition

LOCK = ".lock"
CHECKPOINT_INTERVAL_MS = 60_000

_DELETED_SUFFIX = "-delete"
_LOGGER = structlog.get_logger()


class LogDirectory:
    """The open directory. Made by `LogDirectory.open`."""

    def __init__(
        self, path: Path, files: Files, config: LogConfig, lock: FileLock, rng: random.Random, now_ms: int
    ) -> None:
        self.path = path
        self.config = config
        self.failed: dict[TopicPartition, PipelineError] = {}
        self._files = files
        self._lock = lock
        self._random = rng
        self._logs: dict[TopicPartition, UnifiedLog] = {}
        self._checkpointed: dict[TopicPartition, Offset] = {}
        self._checkpointed_ms = now_ms

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
            _check_owner(files, path, broker_id, cluster_id)
            directory = cls(path, files, config, lock, rng, now_ms)
            directory._load(now_ms)
        except BaseException:
            lock.release()
            raise
        return directory

    @property
    def logs(self) -> Mapping[TopicPartition, UnifiedLog]:
        """All open logs, a live view."""
        return MappingProxyType(self._logs)

    def _load(self, now_ms: int) -> None:
        clean = self._files.exists(self.path / CLEAN_SHUTDOWN)
        self._files.unlink(self.path / CLEAN_SHUTDOWN)
        self._files.sync_directory(self.path)
        recovery_points = read_recovery_points(self._files, self.path)
        for name in self._files.names(self.path):
            if name.endswith(_DELETED_SUFFIX):
                self._files.remove_tree(self.path / name)
                continue
            topic_partition = parse_directory_name(name)
            if topic_partition is None:
                continue
            try:
                self._logs[topic_partition] = load_log(
                    self._files,
                    self.path / name,
                    topic_partition,
                    self.config,
                    recovery_point=recovery_points.get(topic_partition, Offset(0)),
                    clean=clean,
                    now_ms=now_ms,
                )
            except PipelineError as error:
                self.failed[topic_partition] = error
                _LOGGER.exception("log_failed", topic_partition=str(topic_partition))

    def create(
        self,
        topic_partition: TopicPartition,
        *,
        now_ms: int,
        topic_id: uuid.UUID | None = None,
        config: LogConfig | None = None,
    ) -> UnifiedLog:
        """A new, empty log; with no `config` of its own it has the directory's.

        Raises ValueError if there is one of this name, StorageError.
        """
        if topic_partition in self._logs or topic_partition in self.failed:
            raise ValueError(f"there is a log of {topic_partition}")
        directory = self.path / str(topic_partition)
        self._files.make_directory(directory)
        if topic_id is not None:
            replace_file(self._files, directory / PARTITION_METADATA, encode_partition_metadata(topic_id))
        self._files.sync_directory(self.path)
        log = self._logs[topic_partition] = load_log(
            self._files,
            directory,
            topic_partition,
            config or self.config,
            recovery_point=Offset(0),
            clean=False,
            now_ms=now_ms,
        )
        return log

    def delete(self, topic_partition: TopicPartition) -> None:
        """Remove a log, also one that failed; none there is fine. Regions handed out stay readable.

        Raises StorageError.
        """
        log = self._logs.pop(topic_partition, None)
        if log is not None:
            log.abandon("the partition was deleted")
        elif self.failed.pop(topic_partition, None) is None:
            return
        unique = uuid.UUID(int=self._random.getrandbits(128), version=4).hex
        deleted = self.path / f"{topic_partition}.{unique}{_DELETED_SUFFIX}"
        self._files.rename(self.path / str(topic_partition), deleted)
        self._files.sync_directory(self.path)
        self._files.remove_tree(deleted)

    def flush_due(self, now_ms: int) -> None:
        """Flush the logs whose time has come, and checkpoint from time to time how far each log is on disk.

        To be called about once a second, in a thread if the caller must not wait for the disk. A log whose flush
        fails goes offline by itself; that is logged, not raised. Raises StorageError if the checkpoint fails.
        """
        for topic_partition, log in list(self._logs.items()):
            if log.is_flush_due(now_ms):
                try:
                    log.flush()
                except StorageError:
                    _LOGGER.exception("log_offline", topic_partition=str(topic_partition))
        if now_ms - self._checkpointed_ms >= CHECKPOINT_INTERVAL_MS:
            self._checkpointed_ms = now_ms
            self._checkpoint()

    def _checkpoint(self) -> None:
        points = {name: log.recovery_point for name, log in list(self._logs.items())}
        if points != self._checkpointed:
            replace_file(self._files, self.path / RECOVERY_POINTS, encode_offsets(points))
            self._checkpointed = points

    def close(self) -> None:
        """Bring all logs to disk and mark the shutdown as clean, unless a log failed. Lets the next process in.

        Raises the first StorageError; all logs are closed also then.
        """
        error: StorageError | None = None
        for topic_partition, log in self._logs.items():
            try:
                log.close()
            except StorageError as failure:
                _LOGGER.exception("log_not_closed", topic_partition=str(topic_partition))
                error = error or failure
        try:
            self._checkpoint()
            if error is None and not self.failed:
                replace_file(self._files, self.path / CLEAN_SHUTDOWN, b"")
        finally:
            self._lock.release()
        if error is not None:
            raise error


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition whose directory has this name, None if it is none's."""
    topic, dash, partition = name.rpartition("-")
    if not (topic and dash and partition.isascii() and partition.isdecimal()):
        return None
    if str(int(partition)) != partition:
        return None
    return TopicPartition(topic, int(partition))


def _check_owner(files: Files, path: Path, broker_id: BrokerId, cluster_id: str) -> None:
    content = read_file(files, path / META_PROPERTIES)
    mine = {"version": "0", "broker.id": str(broker_id), "cluster.id": cluster_id}
    if content is None:
        replace_file(files, path / META_PROPERTIES, encode_properties(mine))
        return
    found = decode_properties(content)
    for key in ("broker.id", "cluster.id"):
        if found.get(key) != mine[key]:
            raise ConfigurationError(
                "log.dirs", f"{path} belongs to {key} {found.get(key)}, not {mine[key]} (says {META_PROPERTIES} in it)"
            )
