"""Sets a log aside whose name another topic has taken, and takes it back when its topic returns (`logs_set_aside`).

A log is removed by partition and topic id, never by name alone.
"""

import uuid

from pipeline.diagnostics import get_logger
from pipeline.errors import DiskFullError
from pipeline.log.checkpoint import LOG_START_OFFSETS
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.logs_set_aside import HeldLog, LogName, name_of_failed
from pipeline.log.directories.settlement import has_lost_other_id
from pipeline.log.directories.startup import open_entry
from pipeline.model import Offset, TopicPartition

logger = get_logger(__name__)


def find_logs(directory: LogDirectory) -> list[HeldLog]:
    """All logs in the directory: open, failed, and set aside. Raises StorageError."""
    held = [
        HeldLog(name=LogName(name, log.topic_id), path=log.directory, log=log)
        for name, log in directory.logs.copy().items()
    ]
    held += [
        HeldLog(name=name_of_failed(directory.files, directory.path, name), path=directory.path / str(name))
        for name in list(directory.failed)
    ]
    aside = list(directory.set_aside.paths.items())
    return held + [HeldLog(name=name, path=path, is_set_aside=True) for name, path in aside]


def is_displaced(directory: LogDirectory, name: LogName) -> bool:
    """Return True if another topic's log is in the place of this log, or if it is set aside, or may be opened again."""
    is_kept = name in directory.set_aside.paths or _may_open_again(directory, name.topic_partition)
    return is_kept or _other_in_place(directory, name) is not None


def _may_open_again(directory: LogDirectory, topic_partition: TopicPartition) -> bool:
    """Return True if a log only failed because there was no room to delete or to repair it."""
    lacked_room = isinstance(directory.failed.get(topic_partition), DiskFullError)
    return lacked_room or topic_partition in directory.undeleted & directory.failed.keys()


def may_be_displaced(directory: LogDirectory, name: LogName) -> bool:
    """Return False if `is_displaced` is certainly False, without access to the disk."""
    log = directory.logs.get(name.topic_partition)
    is_other = log is not None and log.topic_id != name.topic_id
    return is_other or name.topic_partition in directory.failed or name in directory.set_aside.paths


def _other_in_place(directory: LogDirectory, name: LogName) -> LogName | None:
    """The log of another topic in the place of this one. A log without a topic id may be this one, unless this one is
    set aside or the log lost another id.
    """
    log, found = directory.logs.get(name.topic_partition), None
    if log is not None:
        found = LogName(name.topic_partition, log.topic_id)
    elif name.topic_partition in directory.failed:
        found = name_of_failed(directory.files, directory.path, name.topic_partition)
    if found is None or found.topic_id == name.topic_id:
        return None
    if found.topic_id is not None or name in directory.set_aside.paths:
        return found
    has_lost_other = log is not None and name.topic_id is not None and has_lost_other_id(directory, log, name.topic_id)
    return found if has_lost_other else None


def make_way(directory: LogDirectory, topic_partition: TopicPartition, topic_id: uuid.UUID, now_ms: int) -> None:
    """Set a log of another topic id aside, and take back the log of this topic id if it is set aside, or open it again
    if it failed for lack of room. Raises StorageError.
    """
    name = LogName(topic_partition, topic_id)
    with directory.moving, directory.noticing_failure():
        other = _other_in_place(directory, name)
        if other is None and _may_open_again(directory, topic_partition):
            directory.undeleted.discard(topic_partition)
            with directory.checkpoints.writing:
                open_entry(directory, directory.path / str(topic_partition), topic_partition, now_ms, clean=False)
        if other is not None:
            log = directory.logs.get(topic_partition)
            if log is not None:
                directory.set_aside.close(log)
            else:
                start = directory.checkpoints.written(LOG_START_OFFSETS, topic_partition)
                directory.set_aside.note_start(topic_partition, start or Offset(0))
            if other.topic_id is None:  # lost with the power: a new id is the only way to name this log
                other = LogName(topic_partition, uuid.UUID(int=directory.rng.getrandbits(128), version=4))
            directory.set_aside.put(other)
            directory.forget(topic_partition)
        is_free = topic_partition not in directory.logs and topic_partition not in directory.failed
        if is_free and name in directory.set_aside.paths:
            with directory.checkpoints.writing:
                _take_back(directory, name, now_ms)


def _take_back(directory: LogDirectory, name: LogName, now_ms: int) -> None:
    """Move a log back to its place and open it. The checkpoints of another log of the name go first."""
    topic_partition = name.topic_partition
    directory.remove_begun([topic_partition])
    directory.checkpoints.replace(topic_partition, directory.set_aside.log_start_offset(name))
    open_entry(directory, directory.set_aside.take_back(name), topic_partition, now_ms, clean=False)
    logger.info("stray_taken_back", topic_partition=str(topic_partition), topic_id=str(name.topic_id))
