"""Opens a log dir: locks it, finishes its deletions, and opens or recovers each log.

Invariants:

- One process at a time: the lock file is held from open to close.
- The mark of a clean shutdown is removed before anything else is done, so that a start that is cut off leaves none.
- A partition that cannot be opened is named in `failed` and leaves the others alone. Its checkpoints stay as they are
  until a later start opens it, or it is deleted.
- A start removes only what the broker was removing or creating. Files of an operator with similar names are named in
  `foreign` and left alone.
"""

import random
from pathlib import Path

from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, PipelineError, StorageError
from pipeline.log.checkpoint import LOCK, LOG_START_OFFSETS, RECOVERY_POINTS
from pipeline.log.config import LogConfig
from pipeline.log.directories.clean_mark import note_tails, read_mark, remove_mark
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.identity import is_same_boot, note_boot, take_ownership
from pipeline.log.files import Files
from pipeline.log.loader import load_log
from pipeline.log.partition_files import is_deleted, is_own_file, looks_deleted, may_be_partition, parse_directory_name
from pipeline.log.unsynced import note_failure
from pipeline.model import BrokerId, Offset, TopicPartition

logger = get_logger(__name__)


def open_log_directory(
    path: Path,
    files: Files,
    config: LogConfig,
    *,
    broker_id: BrokerId,
    cluster_id: str,
    rng: random.Random,
    now_ms: int,
) -> LogDirectory:
    """Lock a directory, created if there is none, and open or recover all partitions in it.

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
        directory = LogDirectory(path, files, config, lock, rng, now_ms, directory_id=directory_id)
        _load(directory, now_ms)
    except BaseException:
        lock.release()
        raise
    return directory


def _load(directory: LogDirectory, now_ms: int) -> None:
    unclosed = read_mark(directory.files, directory.path)
    clean = unclosed is not None
    names = directory.files.names(directory.path)
    is_other_boot = not is_same_boot(directory.files, directory.path)
    directory.may_lack_tails = is_other_boot and not clean
    if is_other_boot:
        note_tails(directory.files, directory.path, unclosed or ())
    if clean or not any(map(parse_directory_name, names)):
        note_boot(directory.files, directory.path)
    remove_mark(directory.files, directory.path)
    directory.checkpoints.read()
    for name in names:
        topic_partition = parse_directory_name(name)
        if topic_partition is not None:
            open_entry(
                directory,
                directory.path / name,
                topic_partition,
                now_ms,
                clean=unclosed is not None and name not in unclosed,
            )
        elif looks_deleted(name):
            _clear_away(directory, directory.path / name)
    for log in directory.logs.values():
        log.may_lack_tail |= directory.may_lack_tails and not log.is_flushed_first
    directory.set_aside.find(names)


def _clear_away(directory: LogDirectory, path: Path) -> None:
    """Finish the deletion of a partition; leave anything else of such a name alone."""
    try:
        if is_deleted(path.name) and directory.files.is_directory(path):
            directory.files.remove_tree(path)
        else:
            _leave_alone(directory, path)
    except StorageError:
        logger.exception("deleted_log_not_removed", path=str(path))


def _leave_alone(directory: LogDirectory, path: Path) -> None:
    directory.foreign.append(path)
    logger.warning("no_log_left_alone", path=str(path), reason="no broker made it; move it out of the log dir")


def open_entry(
    directory: LogDirectory, path: Path, topic_partition: TopicPartition, now_ms: int, *, clean: bool
) -> None:
    """Load the log in a directory of a partition's name, if it is one. Any error fails this partition alone."""
    before = directory.failed.get(topic_partition)
    try:
        if directory.files.is_directory(path) and may_be_partition(directory.files.names(path)):
            _load_partition(directory, path, topic_partition, now_ms, clean=clean)
        else:
            _leave_alone(directory, path)
    except Exception as error:
        if not isinstance(error, PipelineError):
            error = StorageError(str(path), f"cannot be opened: {error!r}")
        directory.failed[topic_partition] = error
        note_failure(directory.files, path)
        if type(error) is not type(before):
            logger.exception("log_failed", topic_partition=str(topic_partition))
    else:
        directory.failed.pop(topic_partition, None)


def _load_partition(
    directory: LogDirectory, path: Path, topic_partition: TopicPartition, now_ms: int, *, clean: bool
) -> None:
    log = load_log(
        directory.files,
        path,
        topic_partition,
        directory.config,
        recovery_point=directory.checkpoints.written(RECOVERY_POINTS, topic_partition) or Offset(0),
        log_start_offset=directory.checkpoints.written(LOG_START_OFFSETS, topic_partition) or Offset(0),
        clean=clean,
        now_ms=now_ms,
    )
    if log.topic_id is None and not log.log_end_offset and all(map(is_own_file, directory.files.names(path))):
        directory.files.remove_tree(path)  # a crash cut off its creation
        return
    directory.checkpoints.adopt(log)
    directory.add(log)
