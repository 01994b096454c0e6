"""The log beside the disk it writes to: appends against plain `os.write` of the same bytes, and the scan of a recovery.

Rounds alternate between the log and the plain file; the medians count. The page cache takes the writes of both, so what
is compared is the work per append, not the disk. An append is what a broker does with a validated batch.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.report import Options, Row, Show
from pipeline.log.config import LogConfig
from pipeline.log.files import DiskFiles
from pipeline.log.loader import load_log
from pipeline.log.recovery import check_segment
from pipeline.log.segment import Segment
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import LeaderEpoch, Offset, TopicPartition
from pipeline.records.batch import validate_for_append
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec

ROUNDS = 9
ROUND_BYTES = 128 << 20
BATCH_SIZES = {"16 KB": 16 << 10, "1 MB": 1 << 20}


def make_batch(size: int) -> bytearray:
    builder = BatchBuilder(Codec.NONE, size)
    while builder.append(None, b"x" * 1000, (), 1_700_000_000_000):
        pass
    return builder.build()


def megabytes_per_s(size: int, action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return size / (time.perf_counter() - start) / 1e6


def open_log(directory: Path) -> UnifiedLog:
    directory.mkdir()
    return load_log(
        DiskFiles(), directory, TopicPartition("a", 0), LogConfig(), recovery_point=Offset(0), clean=False, now_ms=0
    )


def write_plainly(path: Path, batch: bytearray, count: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    for _ in range(count):
        os.write(descriptor, batch)
    os.close(descriptor)


def append(log: UnifiedLog, batch: bytearray, count: int) -> None:
    headers = validate_for_append(batch, max_batch_bytes=len(batch), keep_offsets=True)
    view = memoryview(batch)
    for _ in range(count):
        log.append(view, headers, LeaderEpoch(0), 0)


def appends(directory: Path, size: int, rounds: int, total: int) -> tuple[float, float]:
    """MB/s of the log and of the plain file."""
    batch = make_batch(size)
    count = max(1, total // len(batch))
    total = count * len(batch)
    plain, ours = [], []
    for number in range(rounds):
        path = directory / f"plain-{number}"
        plain.append(megabytes_per_s(total, partial(write_plainly, path, batch, count)))
        path.unlink()
        log = open_log(directory / f"log-{number}")
        ours.append(megabytes_per_s(total, partial(append, log, batch, count)))
        (directory / f"log-{number}" / f"{0:020d}.log").unlink()
    return statistics.median(ours), statistics.median(plain)


def recovery(directory: Path, size: int, rounds: int, total: int) -> tuple[float, float]:
    """MB/s of the check of a segment and of reading it."""
    batch = make_batch(size)
    log = open_log(directory / "recovery")
    append(log, batch, max(1, total // len(batch)))
    segment = Segment(DiskFiles(), log.directory, 0, index_interval_bytes=4096, now_ms=0).load()
    buffer = bytearray(4 << 20)
    ours, plain = [], []

    def read_plainly() -> None:
        position = 0
        while count := os.preadv(segment.file.fileno(), [buffer], position):
            position += count

    for _ in range(rounds):
        ours.append(megabytes_per_s(segment.size_bytes, partial(check_segment, segment)))
        plain.append(megabytes_per_s(segment.size_bytes, read_plainly))
    return statistics.median(ours), statistics.median(plain)


def measure(options: Options, show: Show) -> list[Row]:
    """Appends beside the plain file, and the check of a recovery beside plain reads."""
    rows = []
    for what, peer, way in (("append", "os.write", appends), ("check", "read", recovery)):
        for size_name, size in BATCH_SIZES.items():
            name = f"{what} batches of {size_name}"
            if options.selects(name):
                show(f"log: {name}")
                with tempfile.TemporaryDirectory() as directory:
                    figures = way(Path(directory), size, options.rounds or ROUNDS, options.scaled(ROUND_BYTES))
                rows.append(Row(name=name, unit="MB/s", ours=figures[0], peer=peer, theirs=figures[1]))
    return rows
