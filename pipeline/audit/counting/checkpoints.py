"""Audit checkpoints of a broker: a small file in the directory of each partition, so that it moves with the partition.

Invariants:

A. The first line of the file is a whole checkpoint, each later line holds rows that changed since. Each line begins
   with the CRC-32C of the rest. Lines from the first damaged one on do not hold. So appended lines need no sync: a
   checkpoint that lacks its last lines is one of an earlier time.
B. A checkpoint without a sound first line is none: the log is counted again, and a warning is logged.
C. The file is bounded: rows of a partition are (`windows.py`), and the caller bounds the lines.

Files of version 2, which had a monitoring event in each line, are read. They had no sums of hashes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from crc32c import crc32c

from pipeline.audit.counting.windows import HOURS_KEPT, UNKNOWN_OFFSET, WINDOWS_KEPT, WindowSums
from pipeline.audit.events.encoding import AuditMessageError, decode_count_report, encode_count_report
from pipeline.audit.events.older import decode_older_event
from pipeline.audit.events.report import OLDER, POSITION, ROW, CountReport, ReportedTopic, Rows
from pipeline.audit.events.tiers import Counter, Tier
from pipeline.diagnostics import get_logger
from pipeline.errors import StorageError
from pipeline.log.checkpoint import AUDIT_CHECKPOINT, read_file, replace_file
from pipeline.log.files import Files
from pipeline.model import TopicPartition
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS, Counts, window_start

_CRC_DIGITS = 8

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCounts:
    """Counts of a replica up to the offset `up_to`, of all batches from `counted_from` on.

    `leader_epoch` is that of the last counted batch. `topic_id` is empty if the topic has none, `counted_from` is
    -1 if a program of version 2 did not tell.
    """

    topic_partition: TopicPartition
    topic_id: str
    cluster: str
    window_ms: int
    up_to: int
    counted_from: int
    leader_epoch: int
    rows: Rows


class PartitionCheckpoints:
    """Checkpoints below a broker's log directories. Without a sound one a log is counted again."""

    def __init__(self, log_dirs: Sequence[Path], files: Files) -> None:
        self._log_dirs = log_dirs
        self._files = files

    def read(self, topic_partition: TopicPartition) -> SavedCounts | None:
        """Return the checkpoint with all that was appended to it; None if there is no sound one."""
        try:
            content = read_file(self._files, self._path(topic_partition))
            return None if content is None else _decode(content)
        except (StorageError, AuditMessageError) as error:
            logger.warning("audit_checkpoint_unreadable", partition=str(topic_partition), error=str(error))
            return None

    def write(self, checkpoint: SavedCounts) -> bool:
        """Replace the checkpoint of its partition. Return True if that succeeded."""
        try:
            replace_file(self._files, self._path(checkpoint.topic_partition), _encode(checkpoint))
        except StorageError as error:
            logger.warning("audit_checkpoint_not_written", partition=str(checkpoint.topic_partition), error=str(error))
            return False
        return True

    def append(self, changed: SavedCounts) -> bool:
        """Add changed rows to the checkpoint of their partition. Return True if that succeeded; else replace it."""
        try:
            file = self._files.open(self._path(changed.topic_partition))
            file.write_at(_encode(changed), file.size())
        except StorageError as error:
            logger.warning("audit_checkpoint_not_written", partition=str(changed.topic_partition), error=str(error))
            return False
        return True

    def _path(self, topic_partition: TopicPartition) -> Path:
        directories = [path / str(topic_partition) for path in self._log_dirs]
        found = (directory for directory in directories if len(directories) == 1 or self._files.exists(directory))
        return next(found, directories[0]) / AUDIT_CHECKPOINT


def _encode(counts: SavedCounts) -> bytes:
    """Return the counts as one line."""
    rows, positions = counts.rows.copy(), np.zeros(1, POSITION)
    rows["topic"] = 0
    rows["partition"] = positions["partition"] = counts.topic_partition.partition
    positions["end_offset"] = counts.up_to
    positions["start_offset"] = -1
    positions["counted_from"] = counts.counted_from
    positions["leader_epoch"] = counts.leader_epoch
    report = CountReport(
        counter=Counter(tier=Tier.BROKER, cluster=counts.cluster),
        process="",
        created_ms=0,
        window_ms=counts.window_ms,
        topics=(ReportedTopic(counts.topic_partition.topic, counts.topic_id),),
        rows=rows,
        positions=positions,
    )
    document = encode_count_report(report)
    return b"%08x %s\n" % (crc32c(document), document)


def _decode(content: bytes) -> SavedCounts:
    """Return the checkpoint with all that was appended to it. Raises AuditMessageError."""
    first, *appended = content.split(b"\n")
    if first.startswith(b"{"):
        return _decode_older(first, appended)
    checkpoint = _decode_line(first)
    if checkpoint is None:
        raise AuditMessageError("the first line of the audit checkpoint is damaged")
    lines = [checkpoint.rows]
    for line in appended[:-1]:  # behind the last line end is nothing, or a line that was not appended whole
        following = _decode_line(line)
        if following is None:
            break  # invariant A
        lines.append(following.rows)
        checkpoint = following
    return replace(checkpoint, rows=_latest(lines))


def _decode_line(line: bytes) -> SavedCounts | None:
    """Return the counts of a line; None if the line is damaged. Raises AuditMessageError if it has another format."""
    crc, document = line[:_CRC_DIGITS], line[_CRC_DIGITS + 1 :]
    if crc != b"%08x" % crc32c(document):
        return None
    report = decode_count_report(document)
    if len(report.topics) != 1 or len(report.positions) != 1:
        raise AuditMessageError("an audit checkpoint of several partitions")
    (topic,), (position,) = report.topics, report.positions
    return SavedCounts(
        topic_partition=TopicPartition(topic.name, int(position["partition"])),
        topic_id=topic.topic_id,
        cluster=report.counter.cluster,
        window_ms=report.window_ms,
        up_to=int(position["end_offset"]),
        counted_from=int(position["counted_from"]),
        leader_epoch=int(position["leader_epoch"]),
        rows=report.rows,
    )


def _latest(lines: Sequence[Rows]) -> Rows:
    """Return the last row of each window and hour. Hours that were folded meanwhile are in the row OLDER alone."""
    rows = np.concatenate(lines[::-1])
    _, first = np.unique(rows[["start_ms", "span_ms"]], return_index=True)
    rows = rows[np.sort(first)]
    kept = np.ones(len(rows), np.bool_)
    is_hour = rows["span_ms"] == HOUR_MS
    for one_kind, number in ((is_hour & (rows["start_ms"] != OLDER), HOURS_KEPT), (~is_hour, WINDOWS_KEPT)):
        starts = np.sort(rows["start_ms"][one_kind])[-number:]
        kept[one_kind] = rows["start_ms"][one_kind] >= starts[0] if len(starts) else True
    return rows[kept]


def _decode_older(first: bytes, appended: Sequence[bytes]) -> SavedCounts:
    """Return a checkpoint of version 2. Raises AuditMessageError."""
    event = decode_older_event(first)
    for line in appended[:-1]:
        following = decode_older_event(line)
        event = replace(following, windows={**event.windows, **following.windows})
    source = event.source
    sums = WindowSums(event.window_ms)
    for span_ms in {event.window_ms, HOUR_MS}:
        sums.add_rows(_rows_of_older(event.windows, span_ms))
    is_whole = sum(counts.records for counts in event.windows.values()) == event.revision
    return SavedCounts(
        topic_partition=source.partition,
        topic_id=source.instance,
        cluster=source.cluster,
        window_ms=event.window_ms,
        up_to=event.revision,
        counted_from=0 if is_whole else UNKNOWN_OFFSET,
        leader_epoch=event.leader_epoch,
        rows=sums.rows(),
    )


def _rows_of_older(windows: Mapping[int, Counts], span_ms: int) -> Rows:
    """Return a row for each window of version 2, as part of a window or hour."""
    rows = np.zeros(len(windows), ROW)
    rows["span_ms"] = span_ms
    rows["first_offset"] = rows["last_offset"] = UNKNOWN_OFFSET
    for row, (start_ms, counts) in zip(rows, windows.items(), strict=True):
        row["start_ms"] = window_start(start_ms, span_ms)
        row["records"], row["bytes"], row["batches"] = counts.records, counts.bytes, counts.batches
        row["crc_sum"] = counts.crc_sum
        if counts.codecs is not None:
            row["header_sum"] = counts.codecs.header_sum
            for codec, batches in zip(Codec, counts.codecs.batches, strict=True):
                row[codec.name.lower()] = batches
    return rows
