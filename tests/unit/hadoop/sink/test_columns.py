import pyarrow as pa
import pytest

from pipeline.client.producer.partitioner import partition_for_key
from pipeline.hadoop.sink.columns import cut, rows_by_partition, sink_columns
from pipeline.hadoop.sink.earlier import Earlier
from pipeline.hadoop.sink.identity import EPOCHS, task_identity
from pipeline.hadoop.sink.writer import _after
from pipeline.model import TopicPartition


def rows(count: int = 100, **more: pa.Array) -> pa.RecordBatch:
    columns = {
        "key": pa.array([None if number % 7 == 0 else f"k{number}" for number in range(count)]),
        "value": pa.array([f"v{number}" for number in range(count)]),
    } | more
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_each_row_goes_to_the_partition_of_its_key_in_order() -> None:
    shares = dict(rows_by_partition(rows(), "t", {"t": 3}, 4))
    expected: dict[int, list[bytes]] = {}
    for number in range(100):
        partition = 1 if number % 7 == 0 else partition_for_key(b"k%d" % number, 3)
        expected.setdefault(partition, []).append(b"v%d" % number)
    found = {partition.partition: share.column("value").to_pylist() for partition, share in shares.items()}
    assert found == expected


def test_columns_choose_topic_and_partition() -> None:
    topic = pa.array(["a", "b"] * 50)
    partition = pa.array([0, None] * 50, pa.int32())
    shares = list(rows_by_partition(rows(topic=topic, partition=partition), None, {"a": 2, "b": 1}, 0))
    assert {target: share.num_rows for target, share in shares} == {
        TopicPartition("a", 0): 50,
        TopicPartition("b", 0): 50,
    }
    with pytest.raises(ValueError, match="names a partition"):
        list(rows_by_partition(rows(partition=pa.array([2] * 100, pa.int32())), "a", {"a": 2}, 0))


def test_cuts_are_whole_rows_within_the_bound_or_one_row() -> None:
    records = sink_columns(rows())
    parts = list(cut(records, 100))
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([records]))
    assert len(parts) > 10
    assert [part.num_rows for part in cut(records, 1)] == [1] * 100


def test_equal_rows_of_an_earlier_attempt_are_taken_once() -> None:
    records = sink_columns(rows())
    earlier = Earlier(chunks=[records.slice(0, 30), records.slice(30, 20)])
    assert earlier.take_equal(records.slice(0, 40)) == 40
    assert earlier.take_equal(records.slice(40, 40)) == 10
    assert earlier.take_equal(records.slice(80)) == 0
    assert Earlier(chunks=[records.slice(0, 30)]).take_equal(records.slice(1)) is None


def test_an_identity_is_of_one_task_and_micro_batch() -> None:
    one = task_identity("q", 5, 1)
    assert one == task_identity("q", 5, 1)
    assert one.producer_id == task_identity("q", 6, 1).producer_id
    assert one.producer_epoch + 1 == task_identity("q", 6, 1).producer_epoch
    others = [task_identity("q", 5 + EPOCHS, 1), task_identity("q", 5, 2), task_identity("r", 5, 1)]
    assert one.producer_id not in {other.producer_id for other in others}
    assert 1 << 62 <= one.producer_id < 1 << 63


def test_recorded_offsets_stay_before_the_last_complete_micro_batch() -> None:
    partition = TopicPartition("t", 0)
    recorded = _after({}, {partition: 10}, "start", -1)
    assert recorded[partition].offset == 10
    recorded = _after(recorded, {partition: 20}, "r", 0)
    assert recorded[partition].offset == 10
    recorded = _after(recorded, {partition: 30}, "r", 1)
    assert recorded[partition].offset == 20
    again = _after(recorded, {partition: 31}, "s", 1)
    assert again[partition].offset == 20
    assert _after({}, {partition: 20}, "r", 0)[partition].offset == 0
