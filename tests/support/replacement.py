"""Logs whose segments are cleaned, and what readers find in them."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.log.compaction.cleaner import clean
from pipeline.log.compaction.jobs import Cleaned, CleaningJob, GroupCleaned
from pipeline.log.compaction.plan import SegmentRange
from pipeline.log.config import LogConfig
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.files import DiskFiles, Files
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.records.batch import iterate_headers, validate_for_append
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.memory import MIN_OPENED_BYTES
from pipeline.records.record import Record, iterate_records
from tests.support.wire import content_of

NAME = TopicPartition("table", 0)
NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=1)
KEYS = 5
APPENDED = 14


def open_directory(path: Path, files: Files) -> LogDirectory:
    return open_log_directory(
        path, files, CONFIG, broker_id=BrokerId(1), cluster_id="c", rng=random.Random(1), now_ms=NOW_MS
    )


def key_of(offset: int) -> bytes:
    return b"k%d" % (offset % KEYS)


def append(log: UnifiedLog, count: int, key_of: Callable[[int], bytes] = key_of) -> None:
    """So many batches of two records; values tell their offset."""
    for _ in range(count):
        offset = int(log.log_end_offset)
        builder = BatchBuilder(Codec.NONE, 1 << 20)
        for number in (offset, offset + 1):
            builder.append(key_of(number), b"%060d" % number, (), NOW_MS + number)
        batch = builder.build()
        headers = validate_for_append(batch, max_batch_bytes=1 << 20)
        log.append(batch, headers, LeaderEpoch(0), NOW_MS)


def read(log: UnifiedLog, start: int = 0) -> list[Record]:
    found: list[Record] = []
    offset = Offset(start)
    while offset < log.log_end_offset:
        region = log.read(offset, 1 << 20, log.log_end_offset).region
        data = content_of(region)
        if not data:
            break
        batch = list(iterate_records(data))
        found += [record for record in batch if record.offset >= offset]
        offset = Offset(max(h.next_offset for h in log.headers(offset) if h.base_offset <= last_offset(data)))
    return found


def last_offset(data: bytes) -> int:
    return max(header.base_offset for _, header in iterate_headers(data))


def job_for(log: UnifiedLog, now_ms: int = NOW_MS) -> CleaningJob:
    return CleaningJob(
        directory=str(log.directory),
        segments=tuple(SegmentRange(s.base_offset, end, s.size_bytes) for s, end in log.snapshot.closed_segments()),
        first_dirty_offset=log.clean_offset or 0,
        now_ms=now_ms,
        delete_retention_ms=1000,
        segment_bytes=2000,
        index_interval_bytes=1,
        max_opened_bytes=MIN_OPENED_BYTES,
        map_bytes=1 << 20,
        map_load_factor=0.9,
        bytes_per_second=1e12,
        kept_offsets=(),
        hash_key=(1, 2),
    )


@dataclass
class Run:
    groups: list[tuple[int, int]] = field(default_factory=list)


def compact(directory: LogDirectory, files: Files, run: Run, *, now_ms: int = NOW_MS, appended: int = 1) -> None:
    log = directory.logs[NAME]
    for report in clean(job_for(log, now_ms), files, lambda _: None):
        if isinstance(report, GroupCleaned):
            run.groups.append((report.base_offset, report.end_offset))
            assert directory.replace_segments(log, report.base_offset, report.end_offset, NOW_MS, log.truncations)
            append(log, appended)
        else:
            assert isinstance(report, Cleaned)
            log.clean_offset = Offset(report.end_offset)
            directory.checkpoint_clean_offsets()


def prepare(path: Path) -> None:
    """What the scenario starts with: a broker that was stopped."""
    directory = open_directory(path, DiskFiles())
    append(directory.create(NAME, now_ms=NOW_MS), APPENDED)
    directory.close()
