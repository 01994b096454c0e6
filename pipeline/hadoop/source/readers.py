"""Readers of the source: a fixed range of each partition, and the micro batches of a stream.

A reader plans in a process of the driver, and is sent to the workers, which read. Where Spark keeps no offsets for
itself (`StreamReader`), each call asks the brokers anew.

`pushFilters` of Spark's reader is left out on purpose: Spark 4.1 to 4.3 keep the tasks of the last pushed filter for
all scans of one DataFrame, so that another scan of it loses rows without a word.
"""

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.hadoop.ranges.cluster_offsets import TopicState
from pipeline.hadoop.ranges.range_reader import RangeReader
from pipeline.hadoop.ranges.rows import arrow_schema
from pipeline.hadoop.source.options import OffsetsByTopic, Position, SourceOptions
from pipeline.hadoop.source.positions import (
    TOPIC_ID,
    StreamOffsets,
    TopicRange,
    beginning,
    check_replaced,
    count_new,
    find_offsets,
    find_states,
    from_spark,
    going_back,
    initial_offsets,
    micro_batch_end,
    plan_tasks,
    planned_topics,
    replaced_partitions,
    resolve_positions,
)
from pipeline.hadoop.source.values import ValueColumn, ValueSchema
from pipeline.model import TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.messages.list_offsets import LATEST

REPLACED_ANSWERS = 3
REPLACED_WAIT_S = 1.0
"""Answers of brokers by which a partition has lost what was read of it, and the time between them."""

Found = TypeVar("Found")
_LATEST = Position(named=LATEST)
_PARENT_POLL_S: Final = 0.5

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION_CONTROL = True
except ImportError:  # before PySpark 4.2
    HAS_ADMISSION_CONTROL = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for the interface that this PySpark lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Reads tasks, in a worker. `schema` has the wanted columns alone, and no other is made."""

    options: SourceOptions
    schema: StructType
    values: ValueSchema | None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        # Spark asks for a partition of its own making where there is none.
        if not isinstance(partition, TopicRange):
            return
        wanted = arrow_schema(self.schema)
        if self.values is None or "value" not in wanted.names or self.options.values is None:
            yield from self._read(partition, wanted)
            return
        column = ValueColumn(self.options.values, self.values)
        at = wanted.get_field_index("value")
        closed = wanted.set(at, pa.field("value", pa.binary()))
        if "offset" not in closed.names:  # which errors name
            closed = closed.append(pa.field("offset", pa.int64()))
        for rows in self._read(partition, closed):
            decoded = column.decode(rows, partition.topic, partition.loaded.partition, wanted.field(at).type)
            columns = [decoded if name == "value" else rows.column(name) for name in wanted.names]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)

    def _read(self, partition: TopicRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        options = self.options
        reader = RangeReader(
            client=options.client,
            schema=schema,
            include_batches=options.include_batches,
            fail_on_data_loss=options.fail_on_data_loss,
            max_opened_bytes=options.max_opened_bytes,
            on_bad_batch=options.on_bad_batch,
            consumer=options.consumer,
        )
        return reader.read(partition.topic, partition.loaded, begin=partition.begin)


class DriverGoneError(PipelineError):
    """The process that started this one, Spark, has ended."""

    def __init__(self) -> None:
        super().__init__("Spark has ended, and nobody waits for the answer of the brokers")


def check_wanted_columns(schema: StructType, source: StructType) -> None:
    """Raise ConfigurationError unless all columns of `schema` are columns of the source."""
    types = {field.name: field.dataType for field in source}
    for field in schema:
        if types.get(field.name) != field.dataType:
            raise ConfigurationError(
                "schema", f"the source has no column {field.simpleString()}: {source.simpleString()}"
            )


def _ask(options: SourceOptions, question: Callable[[Cluster], Awaitable[Found]]) -> Found:
    """Ask brokers something, over connections of its own. Raises DriverGoneError if Spark dies meanwhile."""

    async def ask() -> Found:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_with_process, os.getppid())
            async with open_cluster(options.client) as cluster:
                found = await question(cluster)
            nursery.cancel_scope.cancel()
        return found

    with unwrapped_errors():
        return trio.run(ask)


async def _end_with_process(started_by: int) -> None:
    """Raise DriverGoneError once another process is the parent of this one.

    Spark's planning process notices the end of its JVM only when it has its answer; brokers that are silent would keep
    it for minutes.
    """
    while os.getppid() == started_by:  # noqa: ASYNC110 - no event tells of it
        await trio.sleep(_PARENT_POLL_S)
    raise DriverGoneError


class BatchReader(DataSourceReader):
    """Reads a fixed range of each partition."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Return the tasks of all partitions."""
        return list(_ask(self._rows.options, self._plan))

    async def _plan(self, cluster: Cluster) -> list[TopicRange]:
        options = self._rows.options
        states = await find_states(cluster, options)
        start = await find_offsets(cluster, options, states, options.starting)
        end = await find_offsets(cluster, options, states, options.ending)
        return plan_tasks(options, states, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, in a worker."""
        return self._rows.read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the records that are new since the last micro batch. Spark keeps the offsets in its checkpoint."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._target: OffsetsByTopic | None = None
        """Offsets at which a query with the trigger `availableNow` ends."""
        self._triggered_at = time.monotonic()

    def initialOffset(self) -> StreamOffsets:  # noqa: N802 - Spark's name
        """Return the offsets at which a stream without a checkpoint begins."""
        return _ask(self._rows.options, self._begin)

    async def _begin(self, cluster: Cluster) -> StreamOffsets:
        options = self._rows.options
        states = await find_states(cluster, options)
        offsets = initial_offsets(await find_offsets(cluster, options, states, options.starting), states)
        left_out = [
            f"{topic}-{number}"
            for topic, parts in offsets.items()
            for number in parts
            if parts[number] is None and number != TOPIC_ID
        ]
        if left_out and not HAS_ADMISSION_CONTROL:
            reason = f"leaves out {left_out[0]}, which a stream may only with PySpark 4.2 or later (-1 is latest)"
            raise ConfigurationError("startingOffsets", reason)
        return offsets

    def getDefaultReadLimit(self) -> "ReadLimit":  # noqa: N802 - Spark's name
        """Return `maxOffsetsPerTrigger`, or that a micro batch takes all new records."""
        most = self._rows.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the offsets at which the query ends."""
        self._target = resolve_positions(_LATEST, self._states())

    def latestOffset(self, start: StreamOffsets, limit: "ReadLimit") -> StreamOffsets:  # noqa: N802 - Spark's name
        """Return the end of the next micro batch: the last stable offsets, or fewer by the limits of the options."""
        options = self._rows.options
        states = self._states()
        check_replaced(options, start, self._replaced(start, states))
        target = resolve_positions(_LATEST, states)
        if self._target is not None:
            states, target = _until(states, self._target, start), self._target
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = micro_batch_end(start, states, target, most)
        if options.min_offsets_per_trigger is not None and self._target is None:
            waited_ms = (time.monotonic() - self._triggered_at) * 1000
            is_due = waited_ms >= options.max_trigger_delay_ms
            there = count_new(start, micro_batch_end(start, states, target, None), states)
            if there < options.min_offsets_per_trigger and not is_due:
                return start
            self._triggered_at = time.monotonic()
        return end

    def partitions(self, start: StreamOffsets, end: StreamOffsets) -> list[InputPartition]:
        """Return the tasks of one micro batch. A partition that is new since `start` is read from its beginning."""
        states = self._states()
        if not HAS_ADMISSION_CONTROL:  # otherwise `latestOffset` has compared them
            check_replaced(self._rows.options, start, going_back(start, end))
        states = planned_topics(states, end)
        return list(plan_tasks(self._rows.options, states, beginning(start, states, end), from_spark(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, in a worker."""
        return self._rows.read(partition)

    def _replaced(self, start: StreamOffsets, states: dict[str, TopicState]) -> dict[TopicPartition, str]:
        """Return `replaced_partitions` that still are after some time: a leader of before may have answered."""
        replaced = replaced_partitions(start, states)
        for _ in range(REPLACED_ANSWERS - 1):
            if replaced:
                time.sleep(REPLACED_WAIT_S)
                replaced = {
                    partition: reason
                    for partition, reason in replaced_partitions(start, self._states()).items()
                    if partition in replaced
                }
        return replaced

    def _states(self) -> dict[str, TopicState]:
        async def find(cluster: Cluster) -> dict[str, TopicState]:
            return await find_states(cluster, self._rows.options)

        return _ask(self._rows.options, find)


class PlainStreamReader(StreamReader):
    """StreamReader of PySpark 4.0 and 4.1, which do not tell where a micro batch starts: it takes all new records."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows)
        for name in ("max", "min"):
            if getattr(rows.options, f"{name}_offsets_per_trigger") is not None:
                raise ConfigurationError(f"{name}OffsetsPerTrigger", "needs PySpark 4.2 or later")

    def latestOffset(self) -> StreamOffsets:  # type: ignore[override]  # noqa: N802 - Spark's name
        """Return the last stable offsets."""
        states = self._states()
        return initial_offsets(resolve_positions(_LATEST, states), states)


def _until(states: dict[str, TopicState], target: OffsetsByTopic, start: StreamOffsets) -> dict[str, TopicState]:
    """Return the partitions that a query knows that ends at `target`: none that was created later."""
    return {
        topic: replace(
            state,
            bounds={
                number: bounds
                for number, bounds in state.bounds.items()
                if number in target.get(topic, {}) or str(number) in start.get(topic, {})
            },
        )
        for topic, state in states.items()
    }
