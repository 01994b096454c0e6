import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.client.cluster.config import IsolationLevel
from pipeline.errors import ConfigurationError
from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.ranges.cluster_offsets import TopicState
from pipeline.hadoop.ranges.plan import DataLossError, PartitionBounds
from pipeline.hadoop.ranges.rows import row_schema
from pipeline.hadoop.source.data_source import PipelineDataSource
from pipeline.hadoop.source.options import Position, SourceOptions
from pipeline.hadoop.source.positions import (
    StreamOffsets,
    TopicRange,
    beginning,
    check_replaced,
    count_new,
    from_spark,
    going_back,
    initial_offsets,
    micro_batch_end,
    plan_tasks,
    planned_topics,
    replaced_partitions,
    resolve_positions,
)
from pipeline.hadoop.source.readers import Rows, StreamReader
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST

OPTIONS = {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "t"}


def options(**more: str) -> SourceOptions:
    return SourceOptions.parse(OPTIONS | more)


def state(topic_id: Any = None, **bounds: tuple[int, int]) -> TopicState:
    """Log start and end by partition, `p0` and so on."""
    return TopicState(
        name="t",
        topic_id=topic_id,
        bounds={
            int(name[1:]): PartitionBounds(log_start_offset=start, high_watermark=end, end=end)
            for name, (start, end) in bounds.items()
        },
    )


@pytest.fixture
def states() -> dict[str, TopicState]:
    return {"t": state(p0=(5, 9), p1=(0, 0))}


def ranges(parsed: SourceOptions, states: Mapping[str, TopicState]) -> list[tuple[int, ...]]:
    start, end = resolve_positions(parsed.starting, states), resolve_positions(parsed.ending, states)
    tasks = plan_tasks(parsed, states, start, end)
    return [(task.loaded.partition, task.loaded.start, task.loaded.end) for task in tasks]


def test_defaults() -> None:
    parsed = options()
    assert (parsed.starting, parsed.ending) == (Position(named=EARLIEST), Position(named=LATEST))
    assert (parsed.fail_on_data_loss, parsed.include_headers) == (True, True)
    assert parsed.consumer.isolation_level is IsolationLevel.READ_COMMITTED
    assert [str(address) for address in parsed.client.bootstrap] == ["a:1", "b:2"]


def test_settings_of_clients_are_passed_on() -> None:
    given = {
        "kafka.client.id": "report",
        "kafka.request.timeout.ms": "1234",
        "kafka.fetch.max.bytes": "99",
        "kafka.isolation.level": "read_uncommitted",
    }
    parsed = options(**given)
    assert (parsed.client.client_id, parsed.client.request_timeout_ms) == ("report", 1234)
    assert (parsed.consumer.max_bytes, parsed.consumer.isolation_level) == (99, IsolationLevel.READ_UNCOMMITTED)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kafka.bootstrap.servers", "nowhere"),
        ("kafka.isolation.level", "serializable"),
        ("kafka.request.timeout.ms", "soon"),
        ("kafka.fetch.max.bytes", "0"),
        ("subscribe", ""),
        ("subscribePattern", "t.*"),
        ("assign", '{"t": [0]}'),
        ("startingOffsets", "soon"),
        ("startingTimestamp", "noon"),
        ("startingOffsetsByTimestamp", "noon"),
        ("startingOffsetsByTimestampStrategy", "earliest"),
        ("endingOffsets", '{"t": 3}'),
        ("endingOffsetsByTimestamp", "[]"),
        ("failOnDataLoss", "maybe"),
        ("includeHeaders", "some"),
        ("maxRecordsPerTask", "0"),
        ("maxRecordsPerPartition", "-1"),
        ("minPartitions", "many"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxTriggerDelay", "soon"),
        ("maxOpenedBytes", str(1 << 30)),
        ("onBadBatch", "row"),
        ("valueFormat", "json"),
        ("group.id", "g"),
    ],
)
def test_wrong_options_are_named(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=key if key != "kafka.fetch.max.bytes" else "max.bytes"):
        options(**{key: value})


def test_avro_needs_a_registry() -> None:
    with pytest.raises(ConfigurationError, match=r"schema\.registry\.url"):
        options(valueFormat="avro")


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(ConfigurationError, match="subscribePattern"):
        SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribePattern": "("})


def test_times_go_before_offsets() -> None:
    times = {"startingTimestamp": "7", "startingOffsetsByTimestamp": '{"t": {"0": 8}}', "startingOffsets": "latest"}
    assert options(**times).starting == Position(time_ms=7)
    del times["startingTimestamp"]
    assert options(**times).starting == Position(times={"t": {0: 8}})
    assert options(**times).starting.times_of("t", {0: None, 1: None}) == {0: 8}


def test_partitions_become_tasks(states: Mapping[str, TopicState]) -> None:
    assert ranges(options(), states) == [(0, 5, 9)]
    assert ranges(options(maxRecordsPerTask="3"), states) == [(0, 5, 7), (0, 7, 9)]
    assert ranges(options(maxRecordsPerPartition="3"), states) == [(0, 5, 7), (0, 7, 9)]
    assert ranges(options(startingOffsets='{"t": {"0": 6}}', endingOffsets='{"t": {"0": -1, "1": -1}}'), states) == [
        (0, 6, 9)
    ]


def test_there_are_at_least_so_many_tasks() -> None:
    found = ranges(options(minPartitions="4"), {"t": state(p0=(0, 30), p1=(0, 10))})
    assert found == [(0, 0, 10), (0, 10, 20), (0, 20, 30), (1, 0, 10)]


def test_offsets_that_are_gone_are_loss(states: Mapping[str, TopicState]) -> None:
    with pytest.raises(DataLossError, match="deleted"):
        ranges(options(startingOffsets='{"t": {"0": 2}}'), states)
    assert ranges(options(startingOffsets='{"t": {"0": 2}}', failOnDataLoss="false"), states) == [(0, 5, 9)]
    beyond = '{"t": {"0": 10}}'
    with pytest.raises(DataLossError, match="does not hold"):
        ranges(options(endingOffsets=beyond), states)
    assert ranges(options(endingOffsets=beyond, failOnDataLoss="false"), states) == [(0, 5, 9)]
    with pytest.raises(DataLossError, match="no such partition"):
        ranges(options(startingOffsets='{"t": {"7": 2}}'), states)


def stream(parsed: SourceOptions, states: Mapping[str, TopicState], start: StreamOffsets) -> tuple[StreamOffsets, Any]:
    """The end of a micro batch, and its tasks."""
    end = micro_batch_end(
        start, states, resolve_positions(Position(named=LATEST), states), parsed.max_offsets_per_trigger
    )
    tasks = plan_tasks(parsed, states, beginning(start, states), from_spark(end))
    return end, [(task.loaded.partition, task.loaded.start, task.loaded.end) for task in tasks]


def test_a_stream_does_not_read_partitions_that_startingoffsets_leaves_out() -> None:
    parsed = options(startingOffsets='{"t": {"0": 23}}')
    states = {"t": state(p0=(0, 100), p1=(0, 100), p2=(0, 100))}
    start = initial_offsets(resolve_positions(parsed.starting, states), states)
    assert start == {"t": {"0": 23, "1": None, "2": None}}
    end, tasks = stream(parsed, states, start)
    assert tasks == [(0, 23, 100)]
    assert end == {"t": {"0": 100, "1": None, "2": None}}
    grown = {"t": state(p0=(0, 100), p1=(0, 200), p2=(0, 200), p3=(0, 5))}
    end, tasks = stream(parsed, grown, end)
    assert tasks == [(3, 0, 5)]
    assert end == {"t": {"0": 100, "1": None, "2": None, "3": 5}}
    assert stream(parsed, grown, end) == (end, [])


@given(
    st.dictionaries(st.integers(0, 6), st.tuples(st.integers(0, 20), st.integers(0, 200)), min_size=1),
    st.integers(1, 90),
)
def test_micro_batches_of_few_offsets_read_all_once(partitions: Mapping[int, tuple[int, int]], most: int) -> None:
    states = {"t": state(**{f"p{number}": (start, start + size) for number, (start, size) in partitions.items()})}
    parsed = options(maxOffsetsPerTrigger=str(most))
    start = initial_offsets(resolve_positions(parsed.starting, states), states)
    read = []
    for _ in range(5000):
        end, tasks = stream(parsed, states, start)
        assert count_new(start, end, states) <= most + len(partitions)
        if end == start:
            break
        read += [(number, offset) for number, first, last in tasks for offset in range(first, last)]
        start = end
    everything = [(n, o) for n, (first, size) in sorted(partitions.items()) for o in range(first, first + size)]
    assert sorted(read) == everything
    assert len(read) == len(set(read))


def test_offsets_of_a_stream_never_go_back() -> None:
    """A target of the query's start, which the stream has passed."""
    states = {"t": state(p0=(0, 20))}
    assert micro_batch_end({"t": {"0": 9}}, states, {"t": {0: 7}}, None) == {"t": {"0": 9}}


def test_partitions_that_were_replaced_are_loss() -> None:
    start: StreamOffsets = {"t": {"0": 9, "1": 5, "2": None, "3": 4}, "gone": {"0": 3}}
    states = {"t": state(p0=(2, 7), p1=(0, 5), p2=(0, 1))}
    replaced = replaced_partitions(start, states)
    assert {str(partition) for partition in replaced} == {"t-0", "t-3", "gone-0"}
    with pytest.raises(DataLossError, match="the partition is gone"):
        check_replaced(options(), start, replaced)
    parsed = options(failOnDataLoss="false")
    check_replaced(parsed, start, replaced)
    end, tasks = stream(parsed, states, start)
    assert end == {"t": {"0": 7, "1": 5, "2": None}, "gone": {}}
    assert tasks == [(0, 2, 7)]  # what is there now, from its beginning
    grown = {"t": state(p0=(2, 30), p1=(0, 6), p2=(0, 1), p3=(0, 2))}
    again = plan_tasks(parsed, grown, beginning(start, grown, end), from_spark(end))
    assert [(task.loaded.partition, task.loaded.start, task.loaded.end) for task in again] == tasks
    assert stream(parsed, grown, end)[1] == [(0, 7, 30), (1, 5, 6), (3, 0, 2)]


def test_a_topic_that_was_created_again_is_noticed_by_its_id() -> None:
    parsed = options(failOnDataLoss="false")
    old, new = {"t": state("A", p0=(0, 5))}, {"t": state("B", p0=(0, 9))}
    start = initial_offsets(resolve_positions(parsed.starting, old), old)
    assert start == {"t": {"0": 0, "id": "A"}}
    start, tasks = stream(parsed, old, start)
    assert (start, tasks) == ({"t": {"0": 5, "id": "A"}}, [(0, 0, 5)])
    assert list(replaced_partitions(start, new).values()) == ["the topic was deleted and created again"]
    assert replaced_partitions(start, {"t": state(None, p0=(0, 9))}) == {}  # brokers of before topic ids
    assert replaced_partitions({"t": {"0": 5}}, new) == {}  # a checkpoint of before
    end, tasks = stream(parsed, new, start)
    assert (end, tasks) == ({"t": {"0": 9, "id": "B"}}, [(0, 0, 9)])
    assert list(going_back(start, end)) == [TopicPartition("t", 0)]
    assert stream(parsed, new, end) == (end, [])
    for states, read in ((new, [(0, 0, 9)]), ({"t": state("C", p0=(0, 9))}, [])):
        kept = planned_topics(states, end)
        again = plan_tasks(parsed, kept, beginning(start, kept, end), from_spark(end))
        assert [(task.loaded.partition, task.loaded.start, task.loaded.end) for task in again] == read
    with pytest.raises(DataLossError, match="does not hold these offsets"):
        plan_tasks(options(), {}, beginning(start, {}, end), from_spark(end))


def test_a_micro_batch_that_runs_again_after_its_topic_was_replaced() -> None:
    start: StreamOffsets = {"t": {"0": 5, "1": 5}}
    end: StreamOffsets = {"t": {"0": 9, "1": 9}}
    for states in ({"t": state(p0=(0, 7), p1=(0, 9))}, {"t": state(p1=(0, 9))}, {}):
        begin = beginning(start, states, end)
        with pytest.raises(DataLossError, match="failOnDataLoss=false goes on"):
            plan_tasks(options(), states, begin, from_spark(end))
        tasks = plan_tasks(options(failOnDataLoss="false"), states, begin, from_spark(end))
        assert (
            sum(task.loaded.end - task.loaded.start for task in tasks)
            == {2: 6, 1: 4, 0: 0}[sum(len(each.bounds) for each in states.values())]
        )


def test_a_micro_batch_waits_for_no_more_offsets_than_it_may_take() -> None:
    with pytest.raises(ConfigurationError, match="minOffsetsPerTrigger"):
        options(minOffsetsPerTrigger="11", maxOffsetsPerTrigger="10")
    rows = Rows(
        options=options(minOffsetsPerTrigger="100", maxOffsetsPerTrigger="100"),
        schema=row_schema(include_batches=False),
        values=None,
    )

    class Answered(StreamReader):
        def _states(self) -> dict[str, TopicState]:
            return {"t": state(p0=(0, there), p1=(0, there), p2=(0, there))}

    reader = Answered(rows)
    nothing: StreamOffsets = {"t": {"0": 0, "1": 0, "2": 0}}
    there = 33
    assert reader.latestOffset(nothing, reader.getDefaultReadLimit()) == nothing
    there = 500
    taken = reader.latestOffset(nothing, reader.getDefaultReadLimit())
    assert taken == {"t": {"0": 33, "1": 33, "2": 33}}  # shares are rounded: fewer than 100


def test_objects_that_spark_sends_to_workers_are_picklable() -> None:
    source = PipelineDataSource(OPTIONS | {"includeBatches": "true"})
    reader, stream_reader = source.reader(source.schema()), source.streamReader(source.schema())
    task = TopicRange("t", OffsetRange(partition=0, start=1, end=2), 0)
    assert pickle.loads(pickle.dumps((source, reader, stream_reader, task)))[3] == task
    assert PipelineDataSource(OPTIONS).schema() == row_schema(include_batches=False)
    assert "headers" not in PipelineDataSource(OPTIONS | {"includeHeaders": "false"}).schema().fieldNames()


def test_a_schema_may_name_columns_of_the_source_alone() -> None:
    source = PipelineDataSource(OPTIONS)
    source.reader(StructType([StructField("offset", LongType())]))
    for wrong in (StructField("offsets", LongType()), StructField("key", LongType())):
        with pytest.raises(ConfigurationError, match=wrong.name):
            source.reader(StructType([wrong]))
