"""Batches of one partition through one task of a load, and the files that come out."""

import pickle
from pathlib import Path
from typing import Any

import avro.datafile
import avro.io
import fastavro
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.hadoop.commit.layout import TaskAttempt, topic_layout
from pipeline.hadoop.commit.manifest import DataFile
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load.task import TaskWriter
from pipeline.hadoop.load.task_spec import TaskSpec
from pipeline.hadoop.ranges.batch_counts import TaskResult
from pipeline.hadoop.ranges.rows import end_of_range, row_schema, to_rows
from pipeline.records.batch import set_base_offset
from pipeline.records.builder import BatchBuilder
from pipeline.records.columns import open_batches
from pipeline.records.compression import Codec

ROWS = to_arrow_schema(row_schema(include_batches=True), timezone="UTC")


def batch(base_offset: int, records: Any, codec: Codec = Codec.NONE, limit: int = 1 << 20) -> bytearray:
    builder = BatchBuilder(codec, limit)
    for key, value, headers, timestamp_ms in records:
        assert builder.append(key, value, headers, timestamp_ms)
    built = builder.build()
    set_base_offset(built, 0, base_offset)
    return built


ATTEMPT = TaskAttempt(run_id="r1", task=0, attempt=1)


class TaskLoad:
    """Batches of one partition through one task."""

    def __init__(self, directory: Path, **spec: Any) -> None:
        self.root = directory
        settings: dict[str, Any] = {
            "root": str(directory),
            "topic": "t",
            "run_id": "r1",
            "format": "avro",
            "codec": "snappy",
            "window_ms": 600_000,
            "quarantine": False,
            "schemas": None,
            "path_format": "hourly",
        }
        self.spec = TaskSpec(**(settings | spec))

    def run(
        self, *batches: bytearray, start: int = 0, end: int | None = None, portion: int | None = None
    ) -> TaskResult:
        data = b"".join(batches)
        columns = open_batches(data)
        end = columns.next_offset if end is None else end
        assert end is not None
        rows = to_rows(columns.between(start, end), "t", 4, ROWS)
        layout = topic_layout(str(self.root), "t")
        writer = TaskWriter(self.spec, LocalFileSystem(), layout, ATTEMPT)
        portion = portion or max(rows.num_rows, 1)
        for first in range(0, rows.num_rows, portion):
            writer.add(rows.slice(first, portion))
        writer.add(end_of_range("t", 4, end, rows.num_rows, ROWS))
        result = writer.finish(0)
        assert pickle.loads(pickle.dumps(result)) == result
        return result

    def path(self, file: DataFile) -> Path:
        return Path(self.root, "t", file.path)

    def avro(self, file: DataFile) -> list[Any]:
        if self.spec.codec == "zstandard":  # which fastavro reads with a further library only
            with avro.datafile.DataFileReader(self.path(file).open("rb"), avro.io.DatumReader()) as reader:
                return list(reader)
        with self.path(file).open("rb") as stream:
            return list(fastavro.reader(stream))
