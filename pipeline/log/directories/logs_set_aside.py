"""Logs whose name another topic has taken: set aside, kept, and taken back when their own topic returns.

A log set aside lies in `<log dir>/<topic id>-stray/<topic>-<partition>`. The path tells whose log it is, the files are
those of any partition, and a file of its own keeps the log start offset, which no checkpoint names any more.

Invariants:

- A log is set aside with all its records on the disk.
- Nothing here removes records.
- Files that an operator keeps beside the logs are left alone.
"""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from pipeline.diagnostics import get_logger
from pipeline.errors import StorageError
from pipeline.log.checkpoint import (
    LOG_START_OFFSETS,
    TAIL_LOST,
    decode_id,
    encode_id,
    encode_offsets,
    read_offsets,
    read_partition_metadata,
    replace_file,
)
from pipeline.log.files import Files
from pipeline.log.held_files import drop_files
from pipeline.log.log_failure import abandon
from pipeline.log.partition_files import may_be_partition, parse_directory_name
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Offset, TopicPartition

SUFFIX = "-stray"
ID_LENGTH = 22

logger = get_logger(__name__)


class LogName(NamedTuple):
    """A partition of the topic with this id. The id is None if the log never knew it."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLog:
    """A log on the disk, whatever its state. `log` is None if it is not open: it failed, or was set aside."""

    name: LogName
    path: Path
    log: UnifiedLog | None = None
    is_set_aside: bool = False


def name_of_failed(files: Files, root: Path, topic_partition: TopicPartition) -> LogName:
    """Return the name of a log that failed, with the topic id in its directory, if any."""
    try:
        topic_id = read_partition_metadata(files, root / str(topic_partition), is_on_disk=False)
    except StorageError:
        topic_id = None
    return LogName(topic_partition, topic_id)


class LogsSetAside:
    """The logs set aside in one log dir. Not safe for threads: the directory has a lock."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._root = root
        self._paths: dict[LogName, Path] = {}

    @property
    def paths(self) -> Mapping[LogName, Path]:
        """Directories of the logs that are set aside (a live view)."""
        return MappingProxyType(self._paths)

    def find(self, names: Sequence[str]) -> None:
        """Find the logs set aside among the entries of the log dir. Raises StorageError."""
        for name in names:
            topic_id = _parse(name)
            if topic_id is None:
                continue
            try:
                children = self._files.names(self._root / name)
            except StorageError as error:
                logger.warning("strays_not_found", error=str(error))
                continue
            for child in children:
                topic_partition, path = parse_directory_name(child), self._root / name / child
                if topic_partition is not None and self._is_log(path):
                    self._paths[LogName(topic_partition, topic_id)] = path

    def _is_log(self, path: Path) -> bool:
        try:
            return self._files.is_directory(path) and may_be_partition(self._files.names(path))
        except StorageError as error:
            logger.warning("strays_not_found", error=str(error))
            return False

    def close(self, log: UnifiedLog) -> None:
        """End the use of a log to be set aside, and bring all of it to the disk. Raises StorageError."""
        if log.failure is None:
            log.flush()
            abandon(log, "another topic has its name")
            drop_files(log)
        if log.may_lack_tail:
            replace_file(self._files, log.directory / TAIL_LOST, b"set aside")
        offsets = {log.topic_partition: log.log_start_offset}
        replace_file(self._files, log.directory / LOG_START_OFFSETS, encode_offsets(offsets))

    def note_start(self, topic_partition: TopicPartition, log_start_offset: Offset) -> None:
        """Note the log start offset of a failed log to be set aside, if the disk takes it."""
        path = self._root / str(topic_partition) / LOG_START_OFFSETS
        with suppress(StorageError):
            replace_file(self._files, path, encode_offsets({topic_partition: log_start_offset}))

    def put(self, name: LogName) -> None:
        """Move the directory of a log that is not open (any more) aside. Raises StorageError."""
        assert name.topic_id is not None
        parent = self._root / f"{encode_id(name.topic_id)}{SUFFIX}"
        if not self._files.exists(parent):
            self._files.make_directory(parent)
        self._files.rename(self._root / str(name.topic_partition), parent / str(name.topic_partition))
        self._files.sync_directory(parent)
        self._files.sync_directory(self._root)
        self._paths[name] = parent / str(name.topic_partition)
        logger.warning("log_set_aside", path=str(self._paths[name]), reason="another topic has its name")

    def is_whole(self, name: LogName) -> bool:
        """Return True if a log is here that has not lost its tail. Raises StorageError."""
        path = self._paths.get(name)
        return path is not None and self._files.exists(path) and not self._files.exists(path / TAIL_LOST)

    def settle_tail(self, name: LogName) -> None:
        """Forget that a log may lack its tail; if the disk refuses, a later start asks for the log again."""
        path = self._paths.get(name)
        try:
            if path is not None and self._files.exists(path / TAIL_LOST):
                self._files.unlink(path / TAIL_LOST)
                self._files.sync_directory(path)
        except StorageError as error:
            logger.warning("stray_tail_not_settled", path=str(path), error=str(error))

    def log_start_offset(self, name: LogName) -> Offset:
        """The log start offset of a log when it was set aside. Raises StorageError."""
        offsets = read_offsets(self._files, self._paths[name] / LOG_START_OFFSETS)
        return offsets.get(name.topic_partition, Offset(0))

    def take_back(self, name: LogName) -> Path:
        """Move a log back among the open logs, and return its directory. Raises StorageError."""
        path, target = self._paths[name], self._root / str(name.topic_partition)
        self._files.rename(path, target)
        del self._paths[name]
        if self._files.exists(target / LOG_START_OFFSETS):
            self._files.unlink(target / LOG_START_OFFSETS)
        self._files.sync_directory(self._root)
        self.remove_empty(path.parent)
        return target

    def keep(self, name: LogName, path: Path) -> None:
        """Keep a log that could not be moved away."""
        self._paths[name] = path

    def forget(self, name: LogName) -> Path:
        """Forget a log that its owner moves away; returns its directory."""
        return self._paths.pop(name)

    def remove_empty(self, parent: Path) -> None:
        """Remove a topic's directory if nothing is left in it. Raises StorageError."""
        if self._files.exists(parent) and not self._files.names(parent):
            self._files.remove_tree(parent)


def _parse(name: str) -> uuid.UUID | None:
    """The topic whose logs were set aside in a directory of this name, None if there are none in it."""
    text = name.removesuffix(SUFFIX)
    if len(text) != ID_LENGTH or not name.endswith(SUFFIX):
        return None
    try:
        return decode_id(text)
    except ValueError:
        return None
