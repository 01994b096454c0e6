"""Runs the tasks of a load as a Spark job: each reads its ranges and writes its files, in one Python worker.

Rows do not travel through the JVM: a task takes ranges and gives a TaskResult. Spark schedules the tasks, tries them
again, speculates, and hands over the result of exactly one attempt of each. The job is an RDD: it needs neither Spark
SQL nor workers that only plan, which are half of the time of a small load.
"""

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

from pipeline.hadoop.commit.manifest import OffsetRange

if TYPE_CHECKING:
    from pyspark import SparkContext

    from pipeline.client.cluster.config import ClientConfig, IsolationLevel
    from pipeline.hadoop.load.task_spec import TaskSpec
    from pipeline.hadoop.ranges.batch_counts import TaskResult


class Spark(Protocol):
    """A SparkSession, or what stands for it where Spark SQL is not needed."""

    @property
    def sparkContext(self) -> "SparkContext":  # noqa: N802 - Spark's name
        """Return the context that runs jobs."""


_UNUSED_COLUMNS: Final = {"topic", "timestamp", "timestampType"}
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BLOCK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """Values that the driver sends to the workers; picklable."""

    client: "ClientConfig"
    spec: "TaskSpec"
    tasks: tuple[tuple[OffsetRange, ...], ...]
    """The ranges of each task."""
    max_opened_bytes: int
    isolation_level: "IsolationLevel"


def run_tasks(spark: Spark, job: LoadJob) -> "list[TaskResult]":
    """Run the job and wait for its results. Raises Spark's errors."""
    tasks = spark.sparkContext.parallelize(job.tasks, len(job.tasks))
    return tasks.map(partial(_run_task, job)).collect()


def _run_task(job: LoadJob, ranges: tuple[OffsetRange, ...]) -> "TaskResult":
    import pyarrow as pa
    from pyspark import TaskContext

    from pipeline.client.cluster.config import ConsumerConfig
    from pipeline.hadoop.commit.layout import TaskAttempt
    from pipeline.hadoop.load.task import write_task
    from pipeline.hadoop.ranges.plan import BadBatch
    from pipeline.hadoop.ranges.range_reader import RangeReader
    from pipeline.hadoop.ranges.rows import arrow_schema, row_schema

    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a load writes in Spark tasks only")
    return_large_blocks()
    attempt = TaskAttempt(run_id=job.spec.run_id, task=context.partitionId(), attempt=context.taskAttemptId())
    columns = arrow_schema(row_schema(include_batches=True))
    reader = RangeReader(
        client=job.client,
        schema=pa.schema([field for field in columns if field.name not in _UNUSED_COLUMNS]),
        include_batches=True,
        fail_on_data_loss=True,
        max_opened_bytes=job.max_opened_bytes,
        on_bad_batch=BadBatch.ROW,  # the writer decides
        consumer=ConsumerConfig(isolation_level=job.isolation_level),
    )
    begin: dict[int, int] = {}
    for planned in chain.from_iterable(job.tasks):
        begin[planned.partition] = min(planned.start, begin.get(planned.partition, planned.start))
    rows = chain.from_iterable(reader.read(job.spec.topic, loaded, begin=begin[loaded.partition]) for loaded in ranges)
    return write_task(job.spec, attempt, context.attemptNumber(), rows)


def return_large_blocks() -> None:
    """Have glibc return each large block of memory to the system when it is freed; other libraries do as they do.

    By default glibc keeps blocks of up to 32 MiB after it has seen a few, and the heap of a worker grows by their gaps.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
