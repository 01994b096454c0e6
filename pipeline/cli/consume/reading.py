"""Reads partitions without a group, and prints what is read."""

import math
from collections.abc import Callable, Iterable

from pipeline.cli.consume.fetched import unopened_batch
from pipeline.cli.consume.printing import Printer
from pipeline.cli.consume.selection import Offsets
from pipeline.client.consumer.consumer import Consumer
from pipeline.client.consumer.errors import PartitionBatchError
from pipeline.model import TopicPartition

LOOK_S = 0.5
"""Interval of checks whether the end was reached without a record, and whether the reader of the output has left."""


async def print_ranges(
    consumer: Consumer,
    starts: Offsets,
    ends: Offsets,
    printer: Printer,
    *,
    follow: bool,
    find_partitions: Callable[[], Iterable[TopicPartition]] = tuple,
) -> None:
    """Print the records of each partition from its start to before its end, or for ever.

    `find_partitions` returns the partitions that there are now: with `follow` new ones are read from their beginning.
    """
    open_ends: dict[TopicPartition, float] = {
        partition: math.inf if follow else end for partition, end in ends.items() if follow or starts[partition] < end
    }
    printer.expected = sum(min(end, ends[p]) - starts[p] for p, end in open_ends.items())
    if printer.options.max_records is not None:
        printer.expected = min(printer.expected, printer.options.max_records)
    consumer.assign({partition: starts[partition] for partition in open_ends})
    while open_ends and not printer.is_full():
        try:
            for fetched in await consumer.poll_batches(LOOK_S):
                await printer.put(fetched, open_ends.get(fetched.topic_partition, 0))
                if printer.is_full():
                    break
        except PartitionBatchError as error:
            _skip(consumer, error, open_ends, printer)
        printer.out.require_reader()
        if follow:
            for partition in find_partitions():
                if partition not in open_ends:
                    consumer.add(partition, 0)
                    open_ends[partition] = math.inf
        open_ends = {partition: end for partition, end in open_ends.items() if consumer.position(partition) < end}
    await printer.finish()


def _skip(
    consumer: Consumer, error: PartitionBatchError, open_ends: dict[TopicPartition, float], printer: Printer
) -> None:
    if error.offset >= open_ends.get(error.topic_partition, 0):
        consumer.skip_batch(error.topic_partition)
        return
    next_offset = error.next_offset
    if printer.options.skip_bad_batches:
        next_offset = consumer.skip_batch(error.topic_partition)
    printer.tell_bad_batch(unopened_batch(error), next_offset)
