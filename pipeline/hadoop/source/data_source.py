"""The Spark data source `pipeline`: Spark jobs read brokers directly, batch or stream (2011 paper, section 4).

    spark.dataSource.register(PipelineDataSource)
    spark.read.format("pipeline").option("kafka.bootstrap.servers", "host:9092").option("subscribe", "clicks").load()

Options bear the names of Spark's Kafka source: `kafka.bootstrap.servers`, `subscribe` (topics, comma-separated),
`startingOffsets` (`earliest`, for streams also `latest`, or JSON `{"clicks": {"0": 23}}`, -2 for earliest, -1 for
latest; partitions that the JSON leaves out are not read), `endingOffsets` (`latest` or JSON), `failOnDataLoss`
(default true). `maxRecordsPerTask` splits large ranges: a task may then start inside a batch, and reads its own rows.
The columns are those of Spark's Kafka source, headers always included.

With `includeBatches=true` each row also has columns of its batch (base offset, CRC, size, records, base timestamp), and
each range ends with a row whose `batch_base_offset` is null: its `offset` is the end of the range, its `batch_records`
the number of rows before it. A reader can thereby prove that it saw the whole range.

Invariants: rows of a task come in the order of their offsets; offsets that do not exist are skipped, offsets that the
log no longer holds fail the task by name; a task that ends has read its whole range.
"""

import json
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.errors import ConfigurationError
from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.ranges.cluster_offsets import TopicState, topic_state
from pipeline.hadoop.ranges.plan import DataLossError, split_ranges
from pipeline.hadoop.ranges.range_reader import RangeReader
from pipeline.hadoop.ranges.rows import row_schema
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.records.memory import MAX_OPENED_BYTES, MIN_OPENED_BYTES
from pipeline.settings import parse_addresses

DEFAULT_MAX_RECORDS_PER_TASK = 50_000_000

OffsetsByTopic = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Checked options. Offsets are `earliest`, `latest` or given by topic and partition."""

    bootstrap: str
    topics: tuple[str, ...]
    starting: str | OffsetsByTopic
    ending: str | OffsetsByTopic
    fail_on_data_loss: bool
    include_batches: bool
    max_records_per_task: int
    max_opened_bytes: int

    KEYS: ClassVar = (
        "kafka.bootstrap.servers",
        "subscribe",
        "startingOffsets",
        "endingOffsets",
        "failOnDataLoss",
        "includeBatches",
        "maxRecordsPerTask",
        "maxOpenedBytes",
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parse options, whose names Spark passes in lower case. Raises ConfigurationError that names the option."""
        given = {key.lower(): value for key, value in options.items()}
        unknown = given.keys() - {key.lower() for key in cls.KEYS} - {"path"}
        if unknown:
            raise ConfigurationError(sorted(unknown)[0], f"is not an option; these are: {', '.join(cls.KEYS)}")
        for key in ("kafka.bootstrap.servers", "subscribe"):
            if not given.get(key):
                raise ConfigurationError(key, "is missing")
        try:
            parse_addresses(given["kafka.bootstrap.servers"])
        except ValueError as error:
            raise ConfigurationError("kafka.bootstrap.servers", str(error)) from error
        return cls(
            bootstrap=given["kafka.bootstrap.servers"],
            topics=tuple(topic.strip() for topic in given["subscribe"].split(",")),
            starting=_offsets("startingOffsets", given.get("startingoffsets", "earliest")),
            ending=_offsets("endingOffsets", given.get("endingoffsets", "latest")),
            fail_on_data_loss=_flag("failOnDataLoss", given.get("failondataloss", "true")),
            include_batches=_flag("includeBatches", given.get("includebatches", "false")),
            max_records_per_task=_count("maxRecordsPerTask", given, DEFAULT_MAX_RECORDS_PER_TASK),
            max_opened_bytes=_count("maxOpenedBytes", given, MIN_OPENED_BYTES, MAX_OPENED_BYTES),
        )

    @property
    def client(self) -> ClientConfig:
        """Return the settings of a client of the cluster."""
        return ClientConfig(bootstrap=parse_addresses(self.bootstrap), client_id="pipeline-spark")


def _count(name: str, given: Mapping[str, str], default: int, greatest: int | None = None) -> int:
    text = given.get(name.lower(), str(default))
    if not text.isdigit() or int(text) < 1:
        raise ConfigurationError(name, f"'{text}' is not a positive number")
    if greatest is not None and int(text) > greatest:
        raise ConfigurationError(name, f"'{text}' is more than {greatest}, the most that a batch may hold")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ConfigurationError(name, f"'{text}' is neither true nor false")
    return text.lower() == "true"


def _offsets(name: str, text: str) -> str | OffsetsByTopic:
    if text.lower() in {"earliest", "latest"}:
        return text.lower()
    try:
        return {
            str(topic): {int(partition): int(offset) for partition, offset in offsets.items()}
            for topic, offsets in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            name, f"'{text}' is not earliest, latest or JSON topic to partition to offset"
        ) from error


@dataclass(frozen=True)
class TopicRange(InputPartition):
    """Offset range that one task reads."""

    topic: str
    loaded: OffsetRange


class PipelineDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "pipeline"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = SourceOptions.parse(options)

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source, and with `includeBatches` those of batches."""
        return row_schema(include_batches=self._parsed.include_batches)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for `spark.read`."""
        return BatchReader(self._parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader for `spark.readStream`."""
        return StreamReader(self._parsed, schema)


class BatchReader(DataSourceReader):
    """Reads a fixed range of each partition."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._reader = _range_reader(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return a task for each topic, partition and range of at most `maxRecordsPerTask` offsets."""
        states = trio.run(_topic_states, self._options)
        start = _resolve(self._options.starting, states)
        end = _resolve(self._options.ending, states)
        return list(_tasks(self._options, states, start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, in a worker."""
        return _read(self._reader, partition)


class StreamReader(DataSourceStreamReader):
    """Reads the records that are new since the last micro batch. Spark keeps the offsets in its checkpoint."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._reader = _range_reader(options, schema)

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        """Return the offsets at which a stream without a checkpoint begins."""
        return _to_spark(_resolve(self._options.starting, trio.run(_topic_states, self._options)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return no limit: a micro batch takes all new records."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:  # noqa: ARG002, N802
        """Return the high watermarks."""
        return _to_spark(_resolve("latest", trio.run(_topic_states, self._options)))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of one micro batch. A partition that is new since `start` is read from its beginning."""
        states = trio.run(_topic_states, self._options)
        beginning = _resolve("earliest", states)
        known = _from_spark(start)
        since = {topic: offsets | known.get(topic, {}) for topic, offsets in beginning.items()}
        return list(_tasks(self._options, states, since, _from_spark(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, in a worker."""
        return _read(self._reader, partition)


def _range_reader(options: SourceOptions, schema: StructType) -> RangeReader:
    return RangeReader(
        client=options.client,
        schema=to_arrow_schema(schema, timezone="UTC"),
        include_batches=options.include_batches,
        fail_on_data_loss=options.fail_on_data_loss,
        max_opened_bytes=options.max_opened_bytes,
    )


def _read(reader: RangeReader, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Spark asks for a partition of its own making where there is none.
    return reader.read(partition.topic, partition.loaded) if isinstance(partition, TopicRange) else iter(())


async def _topic_states(options: SourceOptions) -> dict[str, TopicState]:
    async with open_cluster(options.client) as cluster:
        return {topic: await topic_state(cluster, topic) for topic in options.topics}


def _resolve(wanted: str | OffsetsByTopic, states: Mapping[str, TopicState]) -> OffsetsByTopic:
    """Return offsets as numbers of the log, without names and negative numbers."""
    resolved: OffsetsByTopic = {}
    for topic, state in states.items():
        default = {"earliest": EARLIEST, "latest": LATEST}.get(wanted) if isinstance(wanted, str) else None
        offsets = wanted.get(topic, {}) if not isinstance(wanted, str) else dict.fromkeys(state.bounds, default or 0)
        resolved[topic] = {}
        for partition, offset in offsets.items():
            bounds = state.bounds.get(partition)
            if bounds is None:
                missing = OffsetRange(partition=partition, start=offset, end=offset)
                raise DataLossError(topic, missing, "there is no such partition")
            named = {EARLIEST: bounds.log_start_offset, LATEST: bounds.high_watermark}
            resolved[topic][partition] = named.get(offset, offset)
    return resolved


def _tasks(
    options: SourceOptions, states: Mapping[str, TopicState], start: OffsetsByTopic, end: OffsetsByTopic
) -> Iterator[TopicRange]:
    for topic, ends in sorted(end.items()):
        for partition, end_offset in sorted(ends.items()):
            start_offset = start.get(topic, {}).get(partition)
            bounds = states[topic].bounds.get(partition)
            if start_offset is None:
                continue
            wanted = OffsetRange(partition=partition, start=start_offset, end=end_offset)
            if bounds is None or end_offset > bounds.high_watermark:
                raise DataLossError(topic, wanted, "the topic does not hold these offsets, or no longer holds them")
            if start_offset < bounds.log_start_offset:
                if options.fail_on_data_loss:
                    missing = OffsetRange(partition=partition, start=start_offset, end=bounds.log_start_offset)
                    raise DataLossError(topic, missing, "these offsets were deleted (failOnDataLoss=false goes on)")
                wanted = OffsetRange(partition=partition, start=bounds.log_start_offset, end=end_offset)
            if wanted.start < wanted.end:
                for task in split_ranges([wanted], options.max_records_per_task):
                    yield TopicRange(topic, task)


def _to_spark(offsets: OffsetsByTopic) -> dict[str, dict[str, int]]:
    return {topic: {str(number): offset for number, offset in parts.items()} for topic, parts in offsets.items()}


def _from_spark(offsets: Mapping[str, Mapping[str, int]]) -> OffsetsByTopic:
    return {topic: {int(number): offset for number, offset in parts.items()} for topic, parts in offsets.items()}
