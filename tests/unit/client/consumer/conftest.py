"""A partition that fills with numbers, and readers of them."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.lowlevel

from pipeline.client.consumer.consumer import Consumer
from pipeline.model import TopicPartition
from pipeline.records.batch import read_header, set_base_offset
from pipeline.records.record import iterate_records
from tests.support.scripted_broker import ScriptedCluster

T0 = TopicPartition("t", 0)
DEADLINE_S = 60


@pytest.fixture
def fill(scripted: ScriptedCluster) -> Callable[..., None]:
    """Appends batches of ten records with the values 0, 1, 2 ... to a partition."""

    def fill(batches: int, topic_partition: TopicPartition = T0) -> None:
        partition = scripted.partition(topic_partition)
        for _ in range(batches):
            start = partition.log_end_offset
            partition.append_values([b"%d" % number for number in range(start, start + 10)])
        scripted.notify()

    return fill


async def read(consumer: Consumer, records: int) -> Any:
    """Values by partition, once so many records were read."""
    found: dict[Any, Any] = {}
    with trio.fail_after(DEADLINE_S):
        while sum(map(len, found.values())) < records:
            for batches in await consumer.poll_batches():
                mine = found.setdefault(batches.topic_partition, [])
                mine += [r.value for r in iterate_records(batches.data) if r.offset >= batches.position]
    return found


def numbers(start: int, stop: int) -> Any:
    return [b"%d" % number for number in range(start, stop)]


def put(scripted: ScriptedCluster, batch: bytearray) -> None:
    """Append a batch of one record to the partition."""
    partition = scripted.partition(T0)
    placed = bytearray(batch)
    set_base_offset(placed, 0, partition.log_end_offset)
    partition.batches.append((read_header(placed), bytes(placed)))
    scripted.notify()


async def read_records(consumer: Consumer, count: int) -> Any:
    """Values by partition of so many records."""
    found: dict[Any, Any] = {}
    with trio.fail_after(DEADLINE_S):
        while count and (record := await anext(consumer.records())):
            found.setdefault(record.topic_partition, []).append(record.value)
            count -= 1
    return found
