"""Compaction: the kernels beside their twin in plain Python and beside a plain copy of the same bytes.

A log of 100-byte records with keys, all of it head: each key comes ten times. The copy reads and writes the same files
in the same portions through the same door, checksums verified. CPU seconds of one process, best of several rounds in
which all take their turn. Target: 1.5 million uncompressed records each second.
"""

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.report import Options, Row, Show, Target
from pipeline.log.compaction.cleaner import clean
from pipeline.log.compaction.jobs import CleaningJob
from pipeline.log.compaction.plan import SegmentRange
from pipeline.log.files import CHUNK_BYTES, DiskFiles
from pipeline.log.segment_names import CLEANED_SUFFIX, LOG_SUFFIX, segment_path
from pipeline.records.batch import iterate_headers, set_base_offset, verify_crc
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.memory import MIN_OPENED_BYTES
from pipeline.testing.plain_cleaner import map_plainly, select_plainly

TARGET = Target(bound=1_500_000, at_least=True, absolute=True)
ROUNDS = 5
RECORDS = 600_000
PLAIN_PART = 20
"""The twin gets so much less."""
RECORD_BYTES = 100
TIMES_A_KEY = 10
BATCH_BYTES = 16 * 1024
NOW_MS = 1_700_000_000_000
CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)


def make_log(directory: Path, codec: Codec, records: int) -> SegmentRange:
    """One segment of records whose key, value and framing are 100 bytes."""
    source = random.Random(records)
    value = source.randbytes(64)
    count = 0
    log = bytearray()
    while count < records:
        builder = BatchBuilder(codec, BATCH_BYTES)
        first = count
        while count < records:
            key = b"user-%011d" % source.randrange(records // TIMES_A_KEY)
            if not builder.append(key, b"%012d" % count + value, (), NOW_MS + count):
                break
            count += 1
        batch = builder.build()
        set_base_offset(batch, 0, first)
        log += batch
    segment_path(directory, 0, LOG_SUFFIX).write_bytes(log)
    return SegmentRange(0, count, len(log))


def make_job(directory: Path, segment: SegmentRange) -> CleaningJob:
    return CleaningJob(
        directory=str(directory),
        segments=(segment,),
        first_dirty_offset=0,
        now_ms=NOW_MS,
        delete_retention_ms=1000,
        segment_bytes=1 << 30,
        index_interval_bytes=4096,
        max_opened_bytes=MIN_OPENED_BYTES,
        map_bytes=128 << 20,
        map_load_factor=0.9,
        bytes_per_second=float("inf"),
        kept_offsets=(),
        hash_key=(1, 2),
    )


def clean_with_kernels(job: CleaningJob) -> None:
    for _ in clean(job, DiskFiles(), lambda _: None):
        pass


def clean_plainly(job: CleaningJob) -> None:
    log = segment_path(Path(job.directory), 0, LOG_SUFFIX).read_bytes()
    found, end = map_plainly(log, from_offset=0, max_keys=1 << 30)
    cleaned = select_plainly(log, found, mapped_end=end, now_ms=NOW_MS, delete_retention_ms=1000)
    segment_path(Path(job.directory), 0, LOG_SUFFIX + CLEANED_SUFFIX).write_bytes(cleaned)


def copy(job: CleaningJob) -> None:
    """Read, check and write every byte once."""
    source = DiskFiles().open(segment_path(Path(job.directory), 0, LOG_SUFFIX))
    target = DiskFiles().open(Path(job.directory) / "copy", create=True)
    target.truncate(0)
    size_bytes = source.size()
    position = 0
    while position < size_bytes:
        data = source.read_at(CHUNK_BYTES, position)
        end = 0
        for start, header in iterate_headers(data):
            verify_crc(data, start, header)
            end = start + header.size_bytes
        target.write_at(memoryview(data)[:end], position)
        position += end
    target.sync()


def cpu_seconds(way: Callable[[CleaningJob], None], job: CleaningJob) -> float:
    started = time.process_time()
    way(job)
    return time.process_time() - started


def measure_codec(codec: Codec, records: int, rounds: int) -> dict[str, float]:
    """Records a second of each way, in the best of several rounds in which all take their turn."""
    directory = Path(tempfile.mkdtemp(prefix="bench-cleaner-"))
    small = directory / "small"
    small.mkdir()
    small_records = max(1, records // PLAIN_PART)
    try:
        job = make_job(directory, make_log(directory, codec, records))
        small_job = make_job(small, make_log(small, codec, small_records))
        clean_with_kernels(small_job)
        best = {"kernels": float("inf"), "twin": float("inf"), "copy": float("inf")}
        for _ in range(rounds):
            best["kernels"] = min(best["kernels"], cpu_seconds(clean_with_kernels, job))
            best["copy"] = min(best["copy"], cpu_seconds(copy, job))
            best["twin"] = min(best["twin"], cpu_seconds(clean_plainly, small_job) * records / small_records)
        return {name: records / seconds for name, seconds in best.items()}
    finally:
        shutil.rmtree(directory)


def measure(options: Options, show: Show) -> list[Row]:
    rows = []
    for codec in CODECS:
        names = {f"{codec.name.lower()}, against the {peer}": peer for peer in ("twin", "copy")}
        if not any(map(options.selects, names)):
            continue
        show(f"cleaner: {codec.name.lower()}")
        records = options.scaled(RECORDS, least=PLAIN_PART)
        rates = measure_codec(codec, records, options.rounds_or(ROUNDS))
        for name, peer in names.items():
            target = TARGET if codec is Codec.NONE and peer == "twin" else None
            if options.selects(name):
                ours = rates["kernels"]
                rows.append(Row(name=name, unit="records/s", ours=ours, peer=peer, theirs=rates[peer], target=target))
    return rows
