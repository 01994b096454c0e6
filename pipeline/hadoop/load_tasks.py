"""The tasks of a load as a Spark data source of its own: each reads its range and writes its files, in one worker.

Rows do not travel through the JVM: what a task gives to Spark is one row that says what it did. Spark schedules the
tasks, tries them again, speculates, and hands over the result of exactly one attempt of each.
"""

import base64
import json
import pickle
from collections.abc import Iterator, MutableMapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.hadoop.manifest import OffsetRange

if TYPE_CHECKING:
    from pipeline.client.config import ClientConfig
    from pipeline.hadoop.batch_counts import TaskResult
    from pipeline.hadoop.task import TaskSpec

_JOB_OPTION: Final = "job"
_TASKS_OPTION: Final = "tasks"
_RESULT_SCHEMA: Final = StructType([StructField("result", StringType())])
_UNUSED_COLUMNS: Final = {"topic", "timestamp", "timestampType"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """What the driver sends to the workers; picklable."""

    client: "ClientConfig"
    spec: "TaskSpec"
    tasks: tuple[OffsetRange, ...]


@dataclass(frozen=True)
class LoadPartition(InputPartition):
    """One task."""

    loaded: OffsetRange


class LoadTasks(DataSource):
    """One row per task of the job in its options: the TaskResult as JSON. Reading it is what loads.

    Spark makes this object in processes that only plan; so what reads and writes is imported where it is used.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "pipeline_load_tasks"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._job = options[_JOB_OPTION]
        self._tasks = [OffsetRange(**task) for task in json.loads(options[_TASKS_OPTION])]

    def schema(self) -> StructType:
        """One column of JSON."""
        return _RESULT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - there is but one
        """For `spark.read`."""
        return _Reader(self._job, self._tasks)


class _Reader(DataSourceReader):
    def __init__(self, job: str, tasks: list[OffsetRange]) -> None:
        self._job = job
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        return [LoadPartition(loaded) for loaded in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        if not isinstance(partition, LoadPartition):
            raise TypeError("a load has at least one task")
        job: LoadJob = pickle.loads(base64.b64decode(self._job))
        yield (json.dumps(_run_task(job, partition.loaded).to_json()),)


def _run_task(job: LoadJob, loaded: OffsetRange) -> "TaskResult":
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    from pipeline.hadoop.layout import Attempt
    from pipeline.hadoop.range_reader import RangeReader
    from pipeline.hadoop.rows import row_schema
    from pipeline.hadoop.task import write_task

    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a load writes in Spark tasks only")
    attempt = Attempt(run_id=job.spec.run_id, task=context.partitionId(), attempt=context.taskAttemptId())
    columns = to_arrow_schema(row_schema(include_batches=True), timezone="UTC")
    reader = RangeReader(
        client=job.client,
        schema=pa.schema([field for field in columns if field.name not in _UNUSED_COLUMNS]),
        include_batches=True,
        fail_on_data_loss=True,
    )
    return write_task(job.spec, attempt, context.attemptNumber(), reader.read(job.spec.topic, loaded))


def run_tasks(spark: SparkSession, job: LoadJob) -> list["TaskResult"]:
    """Runs the job and waits for it. Raises what Spark raises."""
    from pipeline.hadoop.batch_counts import TaskResult

    spark.dataSource.register(LoadTasks)
    encoded = base64.b64encode(pickle.dumps(job)).decode()
    tasks = json.dumps([asdict(task) for task in job.tasks])
    source = spark.read.format(LoadTasks.name()).option(_JOB_OPTION, encoded).option(_TASKS_OPTION, tasks)
    return [TaskResult.from_json(json.loads(row["result"])) for row in source.load().collect()]
