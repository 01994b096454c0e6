"""Sums over ranges of a log (`log/range_sums.py`) by CPU time of one core, with the log in the page cache."""

import tempfile
import time
from pathlib import Path
from statistics import median

from bench.log import make_batch, open_log
from bench.report import Options, Row, Show, Target
from pipeline.log.range_sums import sum_range
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import LeaderEpoch
from pipeline.records.batch import validate_for_append
from pipeline.records.batch_sums import SumKind

ROUNDS = 5
BATCH_SIZES = {"1 KB": 1 << 10, "16 KB": 16 << 10, "64 KB": 64 << 10, "1 MB": 1 << 20}
LOG_BYTES = 512 << 20
LEAST = Target(bound=2.0, at_least=True, absolute=True)
KINDS = {
    "headers": (SumKind.HEADERS, False),
    "headers, checksums computed": (SumKind.HEADERS, True),
    "contents": (SumKind.CONTENTS, False),
}


def measure(options: Options, show: Show) -> list[Row]:
    """A row for each kind of sum and size of batches."""
    rows = []
    for size_name, size in BATCH_SIZES.items():
        names = {f"range sums over {kind}, batches of {size_name}": kind for kind in KINDS}
        if not any(map(options.selects, names)):
            continue
        with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as directory:
            show(f"writing a log of batches of {size_name}")
            log = _filled(Path(directory), size, options.scaled(LOG_BYTES))
            for name, kind in names.items():
                if options.selects(name):
                    show(name)
                    found = median(_gigabytes_per_s(log, kind) for _ in range(options.rounds_or(ROUNDS)))
                    target = None if kind == "contents" else LEAST
                    rows.append(Row(name=name, unit="GB/s", ours=found, target=target))
    return rows


def _filled(directory: Path, batch_bytes: int, log_bytes: int) -> UnifiedLog:
    log, batch = open_log(directory / "log"), make_batch(batch_bytes)
    headers = validate_for_append(batch, max_batch_bytes=len(batch), keep_offsets=True)
    for _ in range(max(1, log_bytes // len(batch))):
        log.append(memoryview(batch), headers, LeaderEpoch(0), 0)
    return log


def _gigabytes_per_s(log: UnifiedLog, kind: str) -> float:
    sums, is_deep = KINDS[kind]
    start_s = time.thread_time()
    steps = sum_range(log.snapshot, 0, log.log_end_offset, lambda: False, is_deep=is_deep, kind=sums)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
    size = found.sums.size_bytes
    if found.damage is not None or found.next_offset != log.log_end_offset:
        raise AssertionError(f"the log was not summed: {found}")
    return float(size / (time.thread_time() - start_s) / 1e9)
