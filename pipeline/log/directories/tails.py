"""Marks of logs that may lack their tail: each start asks the cluster about a log with `tail-lost` in its directory.

Invariant: an error with the mark of one log fails this log alone.
"""

import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pipeline.errors import DiskFullError, StorageError
from pipeline.log.checkpoint import PARTITION_METADATA, TAIL_LOST, encode_partition_metadata, replace_file
from pipeline.log.files import Files
from pipeline.log.log_failure import check_online, fail_alone, failing_unless_full
from pipeline.log.unified_log import UnifiedLog

POWER_LOST = b"the power was lost"


def settle_tail(files: Files, log: UnifiedLog, judged: uuid.UUID | None) -> None:
    """Remove the mark of a log that was judged as the topic `judged`, or (None) mark the log. Raises DiskFullError; the
    log fails alone if its directory refuses.
    """
    mark, is_judged = log.directory / TAIL_LOST, judged is not None
    try:
        if judged is not None and log.topic_id is None:
            assign_topic_id(log, judged)  # without the mark it would be any topic's
        is_marked = files.exists(mark)
        if is_marked and is_judged:
            files.unlink(mark)
            files.sync_directory(log.directory)
        elif not is_marked and not is_judged:
            replace_file(files, mark, POWER_LOST)
    except DiskFullError:
        raise
    except StorageError as error:
        if log.failure is None:
            fail_alone(log, error)
    else:
        log.may_lack_tail &= not is_judged


def assign_topic_id(log: UnifiedLog, topic_id: uuid.UUID) -> None:
    """Assign a topic id to a log without one. Raises StorageError; the log is offline then, unless the disk is full."""
    check_online(log)
    with failing_unless_full(log):
        replace_file(log.files, log.directory / PARTITION_METADATA, encode_partition_metadata(topic_id))
    log.topic_id = topic_id


def note_failed_tails(files: Files, directories: Iterable[Path]) -> None:
    """Mark logs that failed to open, for a start that opens them, if their directories take the mark."""
    for directory in directories:
        with suppress(StorageError):
            replace_file(files, directory / TAIL_LOST, POWER_LOST)
