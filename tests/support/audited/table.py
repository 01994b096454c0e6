"""A table that is loaded from raw batches by the code of the load's tasks and commits, without Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.hadoop.commit.layout import TaskAttempt
from pipeline.hadoop.commit.manifest import Manifest, OffsetRange, next_lost, next_offsets
from pipeline.hadoop.commit.publication import commit, read_head
from pipeline.hadoop.commit.runs import end_run, mark_run
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.task import TaskWriter
from pipeline.hadoop.load.task_spec import TaskSpec
from pipeline.hadoop.ranges.batch_counts import check_coverage
from pipeline.hadoop.ranges.rows import end_of_range, row_schema, to_rows
from pipeline.hadoop.upkeep.table import Table, open_table
from pipeline.records.batch import iterate_headers
from pipeline.records.columns import open_batches
from tests.support.audited.brokers import WINDOW_MS

ROWS = to_arrow_schema(row_schema(include_batches=True), timezone="UTC")


@dataclass
class LoadedTable:
    """Table of a topic below a root."""

    root: str
    topic: str
    runs: int = 0
    reported: int = 0
    """Number of the last commit that was reported."""

    def open(self) -> Table:
        return open_table(self.root, self.topic)

    def config(self) -> LoadConfig:
        """Settings of the loads of this table."""
        return LoadConfig.from_settings(
            {"bootstrap.servers": "127.0.0.1:1", "topic": self.topic, "root": self.root, "value.format": "binary"}
        )

    def position(self, partition: int) -> int:
        """Offset of a partition up to which was loaded."""
        table = self.open()
        return read_head(table.files, table.layout).offsets.get(partition, 0)

    def load(self, batches: Mapping[int, Sequence[bytes | bytearray]], created_ms: int) -> Manifest | None:
        """Write and commit batches by partition, which begin at or after where the last load ended."""
        found = {partition: b"".join(some) for partition, some in batches.items() if some}
        if not found:
            return None
        self.runs += 1
        table = self.open()
        head = read_head(table.files, table.layout)
        run_id = f"load{self.runs}"
        mark_run(table.files, table.layout, run_id, head=head.next_sequence - 1, orphan_age_ms=3_600_000)
        settings: dict[str, Any] = {
            "root": self.root,
            "topic": self.topic,
            "run_id": run_id,
            "format": "avro",
            "codec": "snappy",
            "window_ms": WINDOW_MS,
            "quarantine": False,
            "schemas": None,
            "path_format": "hourly",
        }
        spec = TaskSpec(**settings)
        ranges, skipped, results = [], [], []
        for number, (partition, data) in enumerate(sorted(found.items())):
            headers = [header for _, header in iterate_headers(data)]
            start, end = headers[0].base_offset, headers[-1].next_offset
            position = head.offsets.get(partition, 0)
            if start > position:
                skipped.append(OffsetRange(partition=partition, start=position, end=start))
            ranges.append(OffsetRange(partition=partition, start=start, end=end))
            writer = TaskWriter(
                spec, table.files, table.layout, TaskAttempt(run_id=run_id, task=number, attempt=number + 1)
            )
            rows = to_rows(open_batches(data), self.topic, partition, ROWS)
            writer.add(rows)
            writer.add(end_of_range(self.topic, partition, end, rows.num_rows, ROWS))
            results.append(writer.finish(number))
        coverage = check_coverage(self.topic, ranges, results, WINDOW_MS)
        manifest = Manifest(
            sequence=head.next_sequence,
            run_id=run_id,
            created_ms=created_ms,
            topic=self.topic,
            topic_id=None,
            format=spec.format,
            window_ms=WINDOW_MS,
            offsets=next_offsets(head.offsets, ranges, skipped),
            lost=next_lost({} if head.manifest is None else head.manifest.lost, skipped),
            skipped=tuple(skipped),
            ranges=tuple(ranges),
            files=coverage.files,
            counts=coverage.counts,
            sums=coverage.sums,
            path_format=spec.path_format,
            previous_sha256=head.sha256,
        )
        commit(table.files, table.layout, manifest, head)
        end_run(table.files, table.layout, run_id)
        return manifest
