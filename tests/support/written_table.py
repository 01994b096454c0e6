"""A table whose commits are made by the writer of a task, without brokers and Spark."""

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.hadoop.commit.layout import TaskAttempt
from pipeline.hadoop.commit.manifest import DataFile, Manifest, OffsetRange, next_offsets
from pipeline.hadoop.commit.publication import Head, commit, read_head
from pipeline.hadoop.commit.runs import end_run, mark_run
from pipeline.hadoop.load.task import TaskWriter
from pipeline.hadoop.load.task_spec import TaskSpec
from pipeline.hadoop.ranges.batch_counts import check_coverage
from pipeline.hadoop.ranges.rows import end_of_range, row_schema, to_rows
from pipeline.hadoop.upkeep.table import Table, open_table
from pipeline.records.batch import set_base_offset
from pipeline.records.builder import BatchBuilder
from pipeline.records.columns import open_batches
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS

FIRST_MS = 1_700_006_400_000
ROWS = to_arrow_schema(row_schema(include_batches=True), timezone="UTC")


@dataclass
class WrittenTable:
    """Values are numbers, one for each offset. `spec` are settings of the tasks."""

    root: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 0

    def open(self) -> Table:
        return open_table(self.root, "clicks")

    def write(self, count: int, *, hour: int = 0, partition: int = 0) -> tuple[Manifest, Head]:
        """Write files of the next `count` offsets of a partition. Return what is to be committed, and after what."""
        self.runs += 1
        run_id = f"load{self.runs}"
        table = self.open()
        head = read_head(table.files, table.layout)
        start = head.offsets.get(partition, 0)
        mark_run(table.files, table.layout, run_id, head=head.next_sequence - 1, orphan_age_ms=3_600_000)
        loaded = OffsetRange(partition=partition, start=start, end=start + count)
        settings: dict[str, Any] = {
            "root": self.root,
            "topic": "clicks",
            "run_id": run_id,
            "format": "parquet",
            "codec": "snappy",
            "window_ms": 600_000,
            "quarantine": False,
            "schemas": None,
            "path_format": "hourly",
        }
        spec = TaskSpec(**(settings | dict(self.spec)))
        writer = TaskWriter(spec, table.files, table.layout, TaskAttempt(run_id=run_id, task=0, attempt=1))
        rows = to_rows(open_batches(batch_of(start, count, hour)), "clicks", partition, ROWS)
        writer.add(rows)
        writer.add(end_of_range("clicks", partition, loaded.end, rows.num_rows, ROWS))
        result = writer.finish(0)
        manifest = Manifest(
            sequence=head.next_sequence,
            run_id=run_id,
            created_ms=FIRST_MS,
            topic="clicks",
            topic_id=None,
            format=spec.format,
            window_ms=600_000,
            offsets=next_offsets(head.offsets, [loaded]),
            ranges=(loaded,),
            files=result.files,
            counts=check_coverage("clicks", [loaded], [result], 600_000).counts,
            path_format=spec.path_format,
            previous_sha256=head.sha256,
        )
        return manifest, head

    def load(self, count: int, *, hour: int = 0, partition: int = 0) -> Manifest:
        """Write and commit the next `count` offsets of a partition."""
        manifest, head = self.write(count, hour=hour, partition=partition)
        table = self.open()
        commit(table.files, table.layout, manifest, head)
        end_run(table.files, table.layout, manifest.run_id)
        return manifest

    def rows(self) -> list[Any]:
        """All rows of the table by partition and offset; each file is checked against its manifest."""
        table = self.open()
        rows = []
        for file in table.state().data_files():
            found = read_rows(table.read(file), file)
            offsets = [row["_offset"] for row in found]
            assert offsets == sorted(offsets)
            assert (offsets[0], offsets[-1], len(offsets)) == (file.first_offset, file.last_offset, file.records)
            rows += found
        return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))

    def names(self) -> set[str]:
        """Names of all data files on the disk."""
        table = self.open()
        found = (table.files.list_files(folder, recursive=True) for folder in table.layout.data_folders)
        return {table.layout.relative(info.path) for infos in found for info in infos}

    def make_older(self, path: str, age_ms: int) -> None:
        then_s = Path(path).stat().st_mtime - age_ms / 1000
        os.utime(path, (then_s, then_s))


def batch_of(base_offset: int, count: int, hour: int = 0) -> bytes:
    """Return a batch of records whose values are their offsets."""
    builder = BatchBuilder(Codec.ZSTD, 16 << 20)
    for number in range(base_offset, base_offset + count):
        time_ms = FIRST_MS + hour * HOUR_MS + number % 3_000_000
        assert builder.append(b"k%d" % number, b"%d" % number, [("host", b"web")], time_ms)
    built = builder.build()
    set_base_offset(built, 0, base_offset)
    return bytes(built)


def read_rows(data: bytes, file: DataFile) -> list[Any]:
    """Return the rows of a file as plain values."""
    if file.path.endswith(".parquet"):
        return list(pq.read_table(io.BytesIO(data)).to_pylist())
    return list(fastavro.reader(io.BytesIO(data)))
