"""Settles which logs may lack their tail: the marks of logs that the cluster has judged go, other logs are marked.

A log without a topic id may be any topic's. After a loss of power, which may take the id, it belongs to a topic whose
replica was served here (`served_replicas`), and to no other.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping

from pipeline.log.checkpoint import CLEAN_OFFSETS, HIGH_WATERMARKS, RECOVERY_POINTS
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.identity import note_boot
from pipeline.log.directories.logs_set_aside import LogName
from pipeline.log.directories.served_replicas import ReplicaId, replicas_of
from pipeline.log.directories.tails import note_failed_tails, settle_tail
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import TopicPartition


def note_served(directory: LogDirectory, logs: Iterable[UnifiedLog]) -> None:
    """Return once it is on the disk that these logs are served. Raises StorageError."""
    with directory.noticing_failure():
        directory.served.add(replicas_of(logs))


def settle_tails(
    directory: LogDirectory, directories: Collection[uuid.UUID], judged: Mapping[TopicPartition, uuid.UUID]
) -> None:
    """Settle the logs of `judged` (by topic id) that are lost or may lack their tail: no later start asks for them.

    Other logs that may lack their tail are marked: their topic may come back. `directories` are the ids of all log dirs
    of the broker. Raises StorageError.
    """
    with directory.noticing_failure():
        for log in list(directory.logs.values()):
            if log.may_lack_tail:
                with directory.moving:
                    if directory.logs.get(log.topic_partition) is log:  # else deleted, or set aside
                        topic_id = judged[log.topic_partition] if _is_named(directory, log, judged) else None
                        settle_tail(directory.files, log, topic_id)
        for name, topic_id in judged.items():
            with directory.moving:
                directory.set_aside.settle_tail(LogName(name, topic_id))
        directory.served.discard(_missing(directory, judged))
        if directory.may_lack_tails:
            note_failed_tails(
                directory.files, [directory.path / str(name) for name in directory.failed if name not in judged]
            )
        directory.checkpoints.write(RECOVERY_POINTS, HIGH_WATERMARKS, CLEAN_OFFSETS)
        directory.served.settle(directories, list(directory.logs.values()))
        note_boot(directory.files, directory.path)


def _missing(directory: LogDirectory, judged: Mapping[TopicPartition, uuid.UUID]) -> Iterable[ReplicaId]:
    """Replicas of `judged` without a log here."""
    for name, topic_id in judged.items():
        log = directory.logs.get(name)
        is_open = log is not None and _is_named(directory, log, judged)
        if not is_open and name not in directory.failed and LogName(name, topic_id) not in directory.set_aside.paths:
            yield ReplicaId(topic_id, name.partition)


def _is_named(directory: LogDirectory, log: UnifiedLog, judged: Mapping[TopicPartition, uuid.UUID]) -> bool:
    """Return True if `judged` names this log by its topic id, or if a log without one may be the named topic's."""
    topic_id = judged.get(log.topic_partition)
    if topic_id is None or log.topic_id is not None:
        return topic_id is not None and log.topic_id == topic_id
    return not has_lost_other_id(directory, log, topic_id)


def has_lost_other_id(directory: LogDirectory, log: UnifiedLog, topic_id: uuid.UUID) -> bool:
    """Return True if a log without a topic id lost another one than this with the power."""
    replica = ReplicaId(topic_id, log.topic_partition.partition)
    return log.may_lack_tail and directory.served.rule_out(replica, list(directory.logs.values()))
