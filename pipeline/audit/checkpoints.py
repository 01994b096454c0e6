"""A broker's audit checkpoints: a small file in the directory of each partition, so that it goes with the partition."""

from pathlib import Path

import structlog

from pipeline.audit.message import AuditEvent, AuditMessageError, decode_event, encode_event
from pipeline.errors import StorageError
from pipeline.log.checkpoint import read_file, replace_file
from pipeline.log.files import Files
from pipeline.model import TopicPartition

FILE_NAME = "audit-checkpoint"

log = structlog.get_logger()


class PartitionCheckpoints:
    """Checkpoints below a broker's log directory. What cannot be read or written is counted anew from the log."""

    def __init__(self, log_directory: Path, files: Files) -> None:
        self._log_directory = log_directory
        self._files = files

    def read(self, partition: TopicPartition) -> AuditEvent | None:
        """What was last written; None when there is nothing whole."""
        try:
            content = read_file(self._files, self._path(partition))
            return None if content is None else decode_event(content)
        except (StorageError, AuditMessageError) as error:
            log.warning("audit_checkpoint_unreadable", partition=str(partition), error=str(error))
            return None

    def write(self, checkpoint: AuditEvent) -> None:
        """Replace the checkpoint of the event's partition."""
        partition = checkpoint.source.partition
        try:
            replace_file(self._files, self._path(partition), encode_event(checkpoint))
        except StorageError as error:
            log.warning("audit_checkpoint_not_written", partition=str(partition), error=str(error))

    def _path(self, partition: TopicPartition) -> Path:
        return self._log_directory / str(partition) / FILE_NAME
