from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.ranges.task_ranges import MAX_TASK_BYTES, MIN_TASK_BYTES, divide_ranges

PARTS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**7)), min_size=1, max_size=50)


def ranges(parts: Any) -> list[OffsetRange]:
    return [
        OffsetRange(partition=number, start=start, end=start + length) for number, (start, length) in enumerate(parts)
    ]


def sizes(tasks: Any) -> list[int]:
    return [sum(part.end - part.start for part in task) for task in tasks]


@given(
    PARTS,
    st.one_of(st.none(), st.floats(0.1, 1e6)),
    st.integers(1, 64),
    st.integers(1000, 10**9),
)
def test_each_offset_is_in_one_task(parts: Any, record_bytes: Any, parallelism: Any, max_records: Any) -> None:
    # Records of a kilobyte at most where there are many of them: the number of tasks stays small.
    record_bytes = record_bytes if record_bytes is None or record_bytes < 1000 else 1000.0
    tasks = divide_ranges(
        ranges(parts), record_bytes=record_bytes, parallelism=parallelism, max_records=max(10**5, max_records)
    )
    joined: list[OffsetRange] = []
    for part in (part for task in tasks for part in task):
        if joined and joined[-1].partition == part.partition:
            assert joined[-1].end == part.start
            joined[-1] = OffsetRange(partition=part.partition, start=joined[-1].start, end=part.end)
        else:
            joined.append(part)
    assert joined == ranges(parts)
    assert all(0 < size <= max(10**5, max_records) for size in sizes(tasks))


def test_a_hot_partition_is_cut_for_all_cores() -> None:
    tasks = divide_ranges(ranges([(7, 1_000_000), (0, 10)]), record_bytes=100, parallelism=8, max_records=10**7)
    assert len(tasks) >= 8
    assert max(sizes(tasks)) <= 1.1 * 1_000_010 / 8


def test_small_partitions_share_a_task() -> None:
    tasks = divide_ranges(ranges([(0, 10)] * 2000), record_bytes=100, parallelism=8, max_records=10**7)
    assert sizes(tasks) == [20_000]


def test_a_task_has_bounds() -> None:
    large = divide_ranges(ranges([(0, 10**8)]), record_bytes=1000, parallelism=2, max_records=10**10)
    assert max(sizes(large)) <= MAX_TASK_BYTES / 1000 + 1
    assert len(divide_ranges(ranges([(0, 10)]), record_bytes=MIN_TASK_BYTES, parallelism=4, max_records=1000)) == 5
    bounded = divide_ranges(ranges([(0, 5000), (0, 500)]), record_bytes=1, parallelism=1, max_records=1000)
    assert sizes(bounded) == [1000] * 5 + [500]
    unknown = divide_ranges(ranges([(0, 10**6)]), record_bytes=None, parallelism=4, max_records=10**7)
    assert len(unknown) >= 4
