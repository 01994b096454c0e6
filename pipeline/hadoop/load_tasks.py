"""The tasks of a load as a Spark data source of its own: each reads its range and writes its files, in one worker.

Rows do not travel through the JVM: what a task gives to Spark is one row that says what it did. Spark schedules the
tasks, tries them again, speculates, and hands over the result of exactly one attempt of each.
"""

import base64
import json
import pickle
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.client.config import ClientConfig
from pipeline.hadoop.batch_counts import TaskResult
from pipeline.hadoop.layout import Attempt
from pipeline.hadoop.manifest import OffsetRange
from pipeline.hadoop.range_reader import RangeReader
from pipeline.hadoop.rows import row_schema
from pipeline.hadoop.task import TaskSpec, write_task

_OPTION: Final = "job"
_RESULT_SCHEMA: Final = StructType([StructField("result", StringType())])
_UNUSED_COLUMNS: Final = {"topic", "timestamp", "timestampType"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """What the driver sends to the workers; picklable."""

    client: ClientConfig
    spec: TaskSpec
    tasks: tuple[OffsetRange, ...]


@dataclass(frozen=True)
class LoadPartition(InputPartition):
    """One task."""

    loaded: OffsetRange


class LoadTasks(DataSource):
    """One row per task of the job in its option: the TaskResult as JSON. Reading it is what loads."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "pipeline_load_tasks"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._job: LoadJob = pickle.loads(base64.b64decode(options[_OPTION]))

    def schema(self) -> StructType:
        """One column of JSON."""
        return _RESULT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - there is but one
        """For `spark.read`."""
        return _Reader(self._job)


class _Reader(DataSourceReader):
    def __init__(self, job: LoadJob) -> None:
        self._job = job

    def partitions(self) -> list[InputPartition]:
        return [LoadPartition(loaded) for loaded in self._job.tasks]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        if not isinstance(partition, LoadPartition):
            raise TypeError("a load has at least one task")
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("a load writes in Spark tasks only")
        spec = self._job.spec
        attempt = Attempt(run_id=spec.run_id, task=context.partitionId(), attempt=context.taskAttemptId())
        columns = to_arrow_schema(row_schema(include_batches=True), timezone="UTC")
        reader = RangeReader(
            client=self._job.client,
            schema=pa.schema([field for field in columns if field.name not in _UNUSED_COLUMNS]),
            include_batches=True,
            fail_on_data_loss=True,
        )
        rows = reader.read(spec.topic, partition.loaded)
        result = write_task(spec, attempt, context.attemptNumber(), rows)
        yield (json.dumps(result.to_json()),)


def run_tasks(spark: SparkSession, job: LoadJob) -> list[TaskResult]:
    """Runs the job and waits for it. Raises what Spark raises."""
    spark.dataSource.register(LoadTasks)
    encoded = base64.b64encode(pickle.dumps(job)).decode()
    rows = spark.read.format(LoadTasks.name()).option(_OPTION, encoded).load().collect()
    return [TaskResult.from_json(json.loads(row["result"])) for row in rows]
