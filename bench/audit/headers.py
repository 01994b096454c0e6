"""Counting of batch headers by a broker's counter, on one core, without a broker."""

import gc
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from bench.report import Options, Row, Show
from pipeline.audit.counting.broker_counter import BrokerCounter, BrokerLife
from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.log.files import DiskFiles
from pipeline.model import TopicPartition
from pipeline.records.batch import HEADER_SIZE, BatchHeader, header_bytes

ROUNDS = 5
BATCHES = 200_000
RECORDS = 10
LIFE = BrokerLife(broker_id=1, host="bench", started_ms=0, interval_ms=10_000)
NOW_MS = 1_700_000_000_000
SHAPES = {(1, 1): "1 partition", (100, 1): "100 partitions", (2000, 1): "2,000 partitions", (1, 50): "50 in an append"}


def measure(options: Options, show: Show) -> list[Row]:
    """A row for each number of partitions."""
    rows = []
    for (partitions, at_once), shape in SHAPES.items():
        name = f"headers counted, {shape}"
        if options.selects(name):
            show(name)
            batches = options.scaled(BATCHES, least=10_000)
            found = median(_headers_per_s(partitions, at_once, batches) for _ in range(options.rounds_or(ROUNDS)))
            rows.append(Row(name=name, unit="headers/s", ours=found))
    return rows


def _headers_per_s(partitions: int, at_once: int, batches: int) -> float:
    """CPU time of the calls by the broker, and of one report of it all."""
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as directory:
        checkpoints = PartitionCheckpoints([Path(directory)], DiskFiles())
        counter = BrokerCounter("bench", 600_000, checkpoints, lambda: time.time_ns() // 1_000_000, LIFE)
        replicas = [_replica(number) for number in range(partitions)]
        for replica in replicas:
            counter.loaded(replica)
        ends = [0] * partitions
        appends = []
        for number in range(batches // at_once):
            at = number % partitions
            made = [_header(ends[at] + place * RECORDS, number) for place in range(at_once)]
            ends[at] += at_once * RECORDS
            data = memoryview(b"".join(header_bytes(each) + bytes(each.size_bytes - HEADER_SIZE) for each in made))
            appends.append((replicas[at].topic_partition, made, data))
        now_ms = time.time_ns() // 1_000_000
        gc.freeze()  # as a broker does
        try:
            start_s = time.thread_time()
            for topic_partition, made, data in appends:
                counter.appended(topic_partition, made, data, now_ms)
            reports = counter.take_reports()
            took_s = time.thread_time() - start_s
        finally:
            gc.unfreeze()
        counted = sum(int(report.rows["batches"][report.rows["span_ms"] == 600_000].sum()) for report in reports)
        if counted != len(appends) * at_once:
            raise AssertionError(f"counted {counted} of {len(appends) * at_once}")
        return counted / took_s


def _replica(number: int) -> Any:
    """A leader whose batches are all committed."""
    log = SimpleNamespace(
        topic_id=None,
        log_start_offset=0,
        log_end_offset=0,
        compacted_to=0,
        headers=lambda _: iter(()),
        epoch_start=lambda _: 0,
    )
    return SimpleNamespace(
        topic_partition=TopicPartition("bench", number),
        log=log,
        high_watermark=1 << 60,
        is_leader=True,
        leader_epoch=0,
    )


def _header(base_offset: int, number: int) -> BatchHeader:
    return BatchHeader(
        base_offset=base_offset,
        batch_length=1_024,
        partition_leader_epoch=0,
        magic=2,
        crc=number * 2_654_435_761 % 2**32,
        attributes=0,
        last_offset_delta=RECORDS - 1,
        base_timestamp=NOW_MS + number // 100,
        max_timestamp=NOW_MS + number // 100 + 5,
        producer_id=1000,
        producer_epoch=0,
        base_sequence=base_offset % 2**31,
        record_count=RECORDS,
    )
