import pickle
from collections.abc import Mapping

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.errors import ConfigurationError
from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.ranges.cluster_offsets import TopicState
from pipeline.hadoop.ranges.plan import DataLossError, PartitionBounds
from pipeline.hadoop.ranges.rows import row_schema
from pipeline.hadoop.source.data_source import PipelineDataSource, SourceOptions, TopicRange, _resolve, _tasks

OPTIONS = {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "t"}


def options(**more: str) -> SourceOptions:
    return SourceOptions.parse(OPTIONS | more)


@pytest.fixture
def states() -> dict[str, TopicState]:
    bounds = {
        0: PartitionBounds(log_start_offset=5, high_watermark=9),
        1: PartitionBounds(log_start_offset=0, high_watermark=0),
    }
    return {"t": TopicState(name="t", topic_id=None, bounds=bounds)}


def ranges(parsed: SourceOptions, states: Mapping[str, TopicState]) -> list[tuple[int, ...]]:
    start, end = _resolve(parsed.starting, states), _resolve(parsed.ending, states)
    return [(task.loaded.partition, task.loaded.start, task.loaded.end) for task in _tasks(parsed, states, start, end)]


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    parsed = options()
    assert (parsed.starting, parsed.ending, parsed.fail_on_data_loss) == ("earliest", "latest", True)
    assert [str(address) for address in parsed.client.bootstrap] == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kafka.bootstrap.servers", "nowhere"),
        ("subscribe", ""),
        ("startingOffsets", "soon"),
        ("endingOffsets", '{"t": 3}'),
        ("failOnDataLoss", "maybe"),
        ("maxRecordsPerTask", "0"),
        ("maxOpenedBytes", str(1 << 30)),
        ("group.id", "g"),
    ],
)
def test_wrong_options_are_named(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        options(**{key: value})


def test_partitions_become_tasks(states: Mapping[str, TopicState]) -> None:
    assert ranges(options(), states) == [(0, 5, 9)]
    assert ranges(options(maxRecordsPerTask="3"), states) == [(0, 5, 7), (0, 7, 9)]
    assert ranges(options(startingOffsets='{"t": {"0": 6}}', endingOffsets='{"t": {"0": -1, "1": -1}}'), states) == [
        (0, 6, 9)
    ]


def test_offsets_that_are_gone_are_loss(states: Mapping[str, TopicState]) -> None:
    with pytest.raises(DataLossError, match="deleted"):
        ranges(options(startingOffsets='{"t": {"0": 2}}'), states)
    assert ranges(options(startingOffsets='{"t": {"0": 2}}', failOnDataLoss="false"), states) == [(0, 5, 9)]
    with pytest.raises(DataLossError, match="does not hold"):
        ranges(options(endingOffsets='{"t": {"0": 10}}'), states)
    with pytest.raises(DataLossError, match="no such partition"):
        ranges(options(startingOffsets='{"t": {"7": 2}}'), states)


def test_objects_that_spark_sends_to_workers_are_picklable() -> None:
    source = PipelineDataSource(OPTIONS | {"includeBatches": "true"})
    reader = source.reader(source.schema())
    task = TopicRange("t", OffsetRange(partition=0, start=1, end=2))
    assert pickle.loads(pickle.dumps((source, reader, task)))[2] == task
    assert "batch_crc" in to_arrow_schema(source.schema(), timezone="UTC").names
    assert PipelineDataSource(OPTIONS).schema() == row_schema(include_batches=False)
