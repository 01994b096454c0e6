"""Audit checkpoints of a broker: a small file in the directory of each partition, so that it moves with the partition.

The first line of the file is a whole checkpoint, each later line holds windows that changed since. The file is replaced
as a whole; a last line without its line end was not appended whole and is skipped.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.audit.message import AuditEvent, AuditMessageError, decode_audit_event, encode_audit_event
from pipeline.diagnostics import get_logger
from pipeline.errors import StorageError
from pipeline.log.checkpoint import AUDIT_CHECKPOINT, read_file, replace_file
from pipeline.log.files import Files
from pipeline.model import TopicPartition

logger = get_logger(__name__)


class PartitionCheckpoints:
    """Checkpoints below a broker's log directories. Without a readable one a log is counted again."""

    def __init__(self, log_dirs: Sequence[Path], files: Files) -> None:
        self._log_dirs = log_dirs
        self._files = files

    def read(self, partition: TopicPartition) -> AuditEvent | None:
        """Return the checkpoint with all that was appended to it; None if there is no whole one."""
        try:
            content = read_file(self._files, self._path(partition))
            return None if content is None else _decode(content)
        except (StorageError, AuditMessageError) as error:
            logger.warning("audit_checkpoint_unreadable", partition=str(partition), error=str(error))
            return None

    def write(self, checkpoint: AuditEvent) -> bool:
        """Replace the checkpoint of the event's partition. Return True if that succeeded."""
        partition = checkpoint.source.partition
        try:
            replace_file(self._files, self._path(partition), encode_audit_event(checkpoint) + b"\n")
        except StorageError as error:
            logger.warning("audit_checkpoint_not_written", partition=str(partition), error=str(error))
            return False
        return True

    def append(self, event: AuditEvent) -> bool:
        """Add the event to its partition's checkpoint. Return True if that succeeded; otherwise it must be replaced."""
        partition = event.source.partition
        try:
            file = self._files.open(self._path(partition))
            file.write_at(encode_audit_event(event) + b"\n", file.size())
            file.sync()
        except StorageError as error:
            logger.warning("audit_checkpoint_not_written", partition=str(partition), error=str(error))
            return False
        return True

    def _path(self, partition: TopicPartition) -> Path:
        directories = [path / str(partition) for path in self._log_dirs]
        found = (directory for directory in directories if len(directories) == 1 or self._files.exists(directory))
        return next(found, directories[0]) / AUDIT_CHECKPOINT


def _decode(content: bytes) -> AuditEvent:
    """Return the checkpoint with all lines that were appended whole. Raises AuditMessageError."""
    first, *appended = content.split(b"\n")
    checkpoint = decode_audit_event(first)
    for line in appended[:-1]:  # behind the last line end is nothing, or a line that was not appended whole
        event = decode_audit_event(line)
        checkpoint = replace(event, windows={**checkpoint.windows, **event.windows})
    return checkpoint
