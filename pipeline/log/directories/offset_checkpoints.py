"""The offset checkpoints of one log dir: each log's recovery point, clean offset, high watermark and start offset.

Invariants:

- A checkpoint never names an offset of an earlier log of the same topic_partition, nor one beyond what a log holds.
- The entries of a partition that failed to open stay until it is opened, or deleted.
"""

import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from pipeline.log.checkpoint import (
    CLEAN_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINTS,
    encode_offsets,
    read_offsets,
    replace_file,
)
from pipeline.log.files import Files
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Offset, TopicPartition


class OffsetCheckpoints:
    """The checkpoints. `logs` and `failed` are live views of the log dir's partitions."""

    def __init__(
        self, files: Files, root: Path, logs: Mapping[TopicPartition, UnifiedLog], failed: Collection[TopicPartition]
    ) -> None:
        self.writing = threading.Lock()
        self._files = files
        self._root = root
        self._logs = logs
        self._failed = failed
        self._written: dict[str, dict[TopicPartition, Offset]] = {kind: {} for kind in OFFSET_CHECKPOINTS}
        self._high_watermarks: dict[TopicPartition, Offset] = {}

    def read(self) -> None:
        """Read the checkpoint files. Raises StorageError."""
        for kind in OFFSET_CHECKPOINTS:
            self._written[kind] = read_offsets(self._files, self._root / kind)
        self._high_watermarks = dict(self._written[HIGH_WATERMARKS])

    def written(self, kind: str, topic_partition: TopicPartition) -> Offset | None:
        """Return the offset of a partition in the checkpoint file of this kind, None if there is none."""
        return self._written[kind].get(topic_partition)

    def adopt(self, log: UnifiedLog) -> None:
        """Take over the checkpointed offsets of a log that was opened, within the offsets that it holds."""
        topic_partition = log.topic_partition
        log.may_lack_tail |= self._high_watermarks.get(topic_partition, 0) > log.log_end_offset
        if topic_partition in self._high_watermarks:
            self._high_watermarks[topic_partition] = self.high_watermark(log)
        clean_offset = self._written[CLEAN_OFFSETS].get(topic_partition)
        if clean_offset is not None:  # a log that lost its end in a crash may grow past it again
            log.clean_offset = min(clean_offset, log.log_end_offset)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a log that is deleted, moved away, or about to be created."""
        self._high_watermarks.pop(topic_partition, None)

    def kinds_naming(self, names: Collection[TopicPartition]) -> list[str]:
        """Return the kinds of checkpoints that name one of these partitions."""
        return [kind for kind, known in self._written.items() if not known.keys().isdisjoint(names)]

    def replace(self, topic_partition: TopicPartition, log_start_offset: Offset) -> None:
        """Replace the entries of this name by those of its next log. Call with `writing` held. Raises StorageError."""
        for kind in OFFSET_CHECKPOINTS:
            offsets = {known: at for known, at in self._written[kind].items() if known != topic_partition}
            if kind == LOG_START_OFFSETS and log_start_offset:
                offsets[topic_partition] = log_start_offset
            self._replace_file(kind, offsets)

    def high_watermark(self, log: UnifiedLog) -> Offset:
        """Return the last checkpointed high watermark of a log, within the offsets that the log holds."""
        checkpointed = self._high_watermarks.get(log.topic_partition, Offset(0))
        return min(max(checkpointed, log.log_start_offset), log.log_end_offset)

    def take_high_watermarks(self, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Set the high watermarks for the next `write`; those of other logs stay as they were."""
        with self.writing:  # an offset may have been taken before its log was truncated
            for topic_partition, log in dict(self._logs).items():
                if topic_partition in offsets:
                    self._high_watermarks[topic_partition] = min(offsets[topic_partition], log.log_end_offset)

    def moved_back(self, log: UnifiedLog) -> list[str]:
        """Return the checkpoints to be written after offsets of this log moved back."""
        topic_partition = log.topic_partition
        now = {
            RECOVERY_POINTS: log.recovery_point,
            LOG_START_OFFSETS: log.log_start_offset,
            CLEAN_OFFSETS: log.clean_offset or Offset(0),
            HIGH_WATERMARKS: log.log_end_offset,
        }
        with self.writing:
            if topic_partition in self._high_watermarks:
                self._high_watermarks[topic_partition] = min(self._high_watermarks[topic_partition], log.log_end_offset)
        return [kind for kind, offset in now.items() if self._written[kind].get(topic_partition, 0) > offset]

    def write(self, *kinds: str) -> None:
        """Write these checkpoints if they changed. Raises StorageError."""
        with self.writing:
            for kind in kinds:
                offsets = self._current(kind)
                offsets |= {known: at for known, at in self._written[kind].items() if known in self._failed}
                self._replace_file(kind, offsets)

    def _current(self, kind: str) -> dict[TopicPartition, Offset]:
        logs = dict(self._logs).items()
        if kind == RECOVERY_POINTS:
            return {topic_partition: log.recovery_point for topic_partition, log in logs}
        if kind == CLEAN_OFFSETS:
            return {topic_partition: log.clean_offset for topic_partition, log in logs if log.clean_offset is not None}
        if kind == HIGH_WATERMARKS:
            known = self._high_watermarks
            return {topic_partition: known[topic_partition] for topic_partition, _ in logs if topic_partition in known}
        return {topic_partition: log.log_start_offset for topic_partition, log in logs if log.log_start_offset}

    def _replace_file(self, kind: str, offsets: dict[TopicPartition, Offset]) -> None:
        if offsets != self._written[kind]:
            replace_file(self._files, self._root / kind, encode_offsets(offsets))
            self._written[kind] = offsets
