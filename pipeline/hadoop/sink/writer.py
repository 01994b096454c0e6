"""Writers of the Spark data source `pipeline`: `df.write` and `df.writeStream` publish rows to topics.

    df.select("key", "value").writeStream.format("pipeline").option("kafka.bootstrap.servers", "host:9092")
        .option("topic", "clicks").option("checkpointLocation", "hdfs://...").start()

The driver checks options, columns and topic, and records from which offsets on this query writes: in the committed
offsets of the consumer group `group_of(checkpoint)`. Tasks read them: a task of a micro batch that an earlier run may
have begun looks for its records from there. The metadata are `RUN BATCH END`: the last complete micro batch, the run
that wrote it, and the log end offset then.

Invariants: recorded offsets are before all records of the last complete micro batch, which Spark runs again if it died
before it noted the end, and of later ones. Nothing is deleted.
"""

import hashlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import trio
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pipeline.client.admin.groups import CommittedOffset, commit_offsets, fetch_offsets
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.hadoop.ranges.cluster_offsets import topic_state
from pipeline.hadoop.sink.avro_values import AvroValues, find_avro_values
from pipeline.hadoop.sink.identity import TaskIdentity, task_identity
from pipeline.hadoop.sink.options import SinkOptions, check_written_columns
from pipeline.hadoop.sink.task import AttemptWriter
from pipeline.model import NO_LEADER_EPOCH, TopicPartition

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # PySpark 4.0, which gives Arrow batches to any DataSourceArrowWriter

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef, misc]
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """Base of writers of streams."""


_QUERY = "sql.streaming.queryId"
_MICRO_BATCH = "streaming.sql.batchId"
_RUN = "spark.jobGroup.id"

Offsets = dict[TopicPartition, int]
Recorded = dict[TopicPartition, CommittedOffset]


@dataclass(frozen=True)
class AttemptWritten(WriterCommitMessage):
    """Topics that an attempt wrote to, and the run of its query."""

    topics: tuple[str, ...]
    run: str


def group_of(checkpoint: str) -> str:
    """Return the consumer group that keeps the offsets of a query."""
    return f"pipeline-sink-{hashlib.blake2b(checkpoint.rstrip('/').encode(), digest_size=12).hexdigest()}"


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of `df.write`. A repeated task goes on behind the rows that an earlier attempt wrote."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._avro = _checked(options, schema)
        self._query = uuid.uuid4().hex
        self._since = trio.run(_ends_of_option, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> AttemptWritten:  # type: ignore[override]  # as Spark says
        """Write the rows of one task, in a worker."""
        context = TaskContext.get()
        assert context is not None
        identity = task_identity(self._query, 0, context.partitionId())
        is_first = not context.attemptNumber()
        return trio.run(_write, self._options, self._avro, identity, self._since, is_first, iterator, "")


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro batches. A micro batch that runs again goes on behind the rows that were written before."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._avro = _checked(options, schema)
        trio.run(_record_start, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> AttemptWritten:  # type: ignore[override]  # as Spark says
        """Write the rows of one task of a micro batch, in a worker."""
        context = TaskContext.get()
        assert context is not None
        query, batch, run = (context.getLocalProperty(name) for name in (_QUERY, _MICRO_BATCH, _RUN))
        if query is None or batch is None or run is None:
            raise RuntimeError("Spark does not name the query, its run or the micro batch of this task")
        identity = task_identity(query, int(batch), context.partitionId())
        is_first = not context.attemptNumber()
        return trio.run(_write_stream, self._options, self._avro, identity, is_first, int(batch), iterator, run)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Record the log end offsets: later micro batches write behind them."""
        written = [message for message in messages if isinstance(message, AttemptWritten)]
        if written:
            topics = {topic for message in written for topic in message.topics}
            trio.run(_record, self._options, topics, written[0].run, batchId)


def _checked(options: SinkOptions, schema: StructType) -> AvroValues | None:
    check_written_columns(schema, options.topic, is_avro=options.avro is not None)
    return find_avro_values(options.avro, options.topic, schema["value"].dataType) if options.avro is not None else None


async def _write(
    options: SinkOptions,
    avro: AvroValues | None,
    identity: TaskIdentity,
    since: Offsets,
    is_first: bool,
    rows: Iterator[pa.RecordBatch],
    run: str,
) -> AttemptWritten:
    async with open_cluster(options.client) as cluster:
        writer = AttemptWriter(cluster, options, identity, since, _now_ms, is_first=is_first, avro=avro)
        await writer.write_all(rows)
    return AttemptWritten(writer.topics, run)


async def _write_stream(
    options: SinkOptions,
    avro: AvroValues | None,
    identity: TaskIdentity,
    is_first: bool,
    batch: int,
    rows: Iterator[pa.RecordBatch],
    run: str,
) -> AttemptWritten:
    async with open_cluster(options.client) as cluster:
        recorded = await fetch_offsets(cluster, _group(options))
    before = f"{run} {batch - 1} "
    is_behind = any((offset.metadata or "").startswith(before) for offset in recorded.values())
    since = {partition: offset.offset for partition, offset in recorded.items()}
    return await _write(options, avro, identity, since, is_first and is_behind, rows, run)


async def _ends_of_option(options: SinkOptions) -> Offsets:
    if options.topic is None:
        return {}
    async with open_cluster(options.client) as cluster:
        return await _ends(cluster, options.topic)


async def _record_start(options: SinkOptions) -> None:
    """Record the present log end offsets of the option's topic, unless the query has recorded some before."""
    if options.topic is None:
        return
    async with open_cluster(options.client) as cluster:
        ends = await _ends(cluster, options.topic)
        recorded = await fetch_offsets(cluster, _group(options))
        if not any(partition in recorded for partition in ends):
            await commit_offsets(cluster, _group(options), _after({}, ends, "start", -1))


async def _record(options: SinkOptions, topics: set[str], run: str, batch: int) -> None:
    async with open_cluster(options.client) as cluster:
        ends: Offsets = {}
        for topic in sorted(topics):
            ends |= await _ends(cluster, topic)
        if ends:
            recorded = await fetch_offsets(cluster, _group(options))
            await commit_offsets(cluster, _group(options), _after(recorded, ends, run, batch))


def _after(recorded: Recorded, ends: Offsets, run: str, batch: int) -> Recorded:
    """Return what to record after a micro batch. Its own records lie behind the offsets, in case that it runs again."""
    after = {}
    for partition, end in ends.items():
        known = recorded.get(partition)
        if known is None:  # the topic is new to the query: only the start is recorded as it is
            offset = end if batch < 0 else 0
        else:
            _, number, old_end = (known.metadata or "").split()
            offset = int(old_end) if int(number) < batch else known.offset
        metadata = f"{run} {batch} {end}"
        after[partition] = CommittedOffset(offset=offset, leader_epoch=NO_LEADER_EPOCH, metadata=metadata)
    return after


async def _ends(cluster: Cluster, topic: str) -> Offsets:
    state = await topic_state(cluster, topic)
    return {TopicPartition(topic, number): bounds.high_watermark for number, bounds in state.bounds.items()}


def _group(options: SinkOptions) -> str:
    assert options.checkpoint is not None
    return group_of(options.checkpoint)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
