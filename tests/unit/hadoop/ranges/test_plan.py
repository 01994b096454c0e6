from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.hadoop.commit.manifest import OffsetRange, next_lost, next_offsets
from pipeline.hadoop.ranges.plan import DataLossError, PartitionBounds, plan_load, split_ranges


def bounds(log_start_offset: int, high_watermark: int, end: int | None = None) -> PartitionBounds:
    end = high_watermark if end is None else end
    return PartitionBounds(log_start_offset=log_start_offset, high_watermark=high_watermark, end=end)


def test_a_load_goes_from_the_last_manifest_to_the_high_watermark() -> None:
    plan = plan_load("t", {0: 5, 1: 7}, {0: bounds(0, 9), 1: bounds(2, 7), 2: bounds(3, 4)})
    assert plan.ranges == (OffsetRange(partition=0, start=5, end=9), OffsetRange(partition=2, start=3, end=4))
    assert plan.skipped == ()


def test_a_load_of_committed_records_ends_before_the_first_open_transaction() -> None:
    assert plan_load("t", {}, {0: bounds(0, 9, 6)}).ranges == (OffsetRange(partition=0, start=0, end=6),)
    # A load of uncommitted records came further: nothing is lost, and nothing is new yet.
    assert plan_load("t", {0: 8}, {0: bounds(0, 9, 6)}).ranges == ()


def test_a_first_load_may_start_later() -> None:
    plan = plan_load("t", {}, {0: bounds(0, 9)}, first_start={0: 4})
    assert plan.ranges == (OffsetRange(partition=0, start=4, end=9),)


def test_offsets_deleted_before_they_were_loaded_are_named() -> None:
    with pytest.raises(DataLossError) as caught:
        plan_load("t", {0: 5}, {0: bounds(8, 9)})
    assert caught.value.missing == OffsetRange(partition=0, start=5, end=8)


def test_lost_offsets_are_recorded_where_the_user_goes_on() -> None:
    plan = plan_load("t", {0: 5, 1: 1}, {0: bounds(8, 9), 1: bounds(1, 2)}, fail_on_data_loss=False)
    assert plan.skipped == (OffsetRange(partition=0, start=5, end=8),)
    assert plan.ranges[0] == OffsetRange(partition=0, start=8, end=9)


def test_lost_offsets_are_recorded_if_all_of_the_rest_was_deleted() -> None:
    plan = plan_load("t", {0: 5}, {0: bounds(8, 8)}, fail_on_data_loss=False)
    assert plan.ranges == ()
    assert plan.skipped == (OffsetRange(partition=0, start=5, end=8),)
    assert next_offsets({0: 5}, plan.ranges, plan.skipped) == {0: 8}
    assert next_lost({0: 2}, plan.skipped) == {0: 5}


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_topic_that_shrank_is_another_topic(fail_on_data_loss: bool) -> None:
    with pytest.raises(DataLossError, match="created again"):
        plan_load("t", {0: 5}, {0: bounds(0, 4)}, fail_on_data_loss=fail_on_data_loss)


def test_a_partition_that_is_gone_is_loss() -> None:
    with pytest.raises(DataLossError, match="partition 3"):
        plan_load("t", {3: 5}, {0: bounds(0, 4)})


@given(
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1),
    st.integers(1, 20),
)
def test_tasks_cover_the_plan_and_nothing_twice(partitions: Mapping[int, tuple[int, ...]], max_offsets: int) -> None:
    given_bounds = {partition: bounds(start, start + size) for partition, (start, size) in partitions.items()}
    plan = plan_load("t", {}, given_bounds)
    tasks = split_ranges(plan.ranges, max_offsets)
    offsets = [(task.partition, offset) for task in tasks for offset in range(task.start, task.end)]
    expected = [
        (partition, offset)
        for partition, bound in sorted(given_bounds.items())
        for offset in range(bound.log_start_offset, bound.high_watermark)
    ]
    assert offsets == expected
    assert all(0 < task.end - task.start <= max_offsets for task in tasks)
    assert plan_load("t", next_offsets({}, plan.ranges), given_bounds).ranges == ()
