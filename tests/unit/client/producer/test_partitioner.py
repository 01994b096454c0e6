from random import Random

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.producer.partitioner import murmur2, next_sticky_partition, partition_for_key


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_is_that_of_the_java_client(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected & 0xFFFFFFFF


@given(st.binary(max_size=80), st.integers(1, 1000))
def test_keys_go_where_other_clients_send_them(key: bytes, count: int) -> None:
    assert murmur2(key) == aiokafka_murmur2(key) & 0xFFFFFFFF
    assert partition_for_key(key, count) == (aiokafka_murmur2(key) & 0x7FFFFFFF) % count


@given(st.lists(st.integers(0, 20), min_size=1, unique=True), st.integers(0, 20), st.integers())
def test_sticky_partition_changes_when_it_can(partitions: list[int], current: int, seed: int) -> None:
    chosen = next_sticky_partition(partitions, current, Random(seed))
    assert chosen in partitions
    assert chosen != current or partitions == [current]
