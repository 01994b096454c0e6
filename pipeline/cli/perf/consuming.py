"""Reads partitions as columns, as fast as they come, and counts."""

from collections.abc import Mapping

import trio

from pipeline.cli.perf.figures import MB, Throughput
from pipeline.cli.terminal import output
from pipeline.client.consumer.consumer import Consumer
from pipeline.model import TopicPartition
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec

LOOK_S = 0.2
COLUMNS = ("key", "value")
Offsets = Mapping[TopicPartition, int]


class _Counted:
    """Records that were read so far. Times are those of trio's clock."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.ended = started
        self.records = 0
        self.bytes = 0

    @property
    def throughput(self) -> Throughput:
        """Records in the time until the last of them came."""
        return Throughput(records=self.records, bytes=self.bytes, seconds=self.ended - self.started)


async def count_records(
    consumer: Consumer, starts: Offsets, ends: Offsets, records: int | None, timeout_s: float
) -> tuple[Throughput, bool]:
    """Read from `starts` on until so many records were read, or (None) up to `ends`.

    Return the figures, and False if nothing came for `timeout_s` before the end.
    """
    await trio.to_thread.run_sync(_load_columns)
    open_ends = {partition: end for partition, end in ends.items() if records is not None or starts[partition] < end}
    counted = _Counted(trio.current_time())
    if not open_ends:
        return counted.throughput, records is None
    expected = records if records is not None else sum(end - starts[partition] for partition, end in open_ends.items())
    consumer.assign({partition: starts[partition] for partition in open_ends})
    is_complete = True  # also if the reader ends the wait
    with output.progress("Reading", expected) as bar:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read, consumer, counted, records, nursery.cancel_scope)
            is_complete = await _wait(consumer, counted, open_ends, records, timeout_s, bar)
            nursery.cancel_scope.cancel()
    return counted.throughput, is_complete


def _load_columns() -> None:
    """Load the libraries for columns, and use them once: that time is none of the cluster's."""
    from pipeline.client.consumer.columns import ClosedPiece, next_opened, opened_portions

    batch = BatchBuilder(Codec.NONE, 1024)
    batch.append(b"key", b"value", (), 0)
    piece = ClosedPiece(TopicPartition("warm-up", 0), memoryview(batch.build()), 0)
    next_opened(opened_portions([piece], 1 << 20, COLUMNS))


async def _read(consumer: Consumer, counted: _Counted, records: int | None, scope: trio.CancelScope) -> None:
    import pyarrow.compute as pc

    async for table in consumer.columns(COLUMNS):
        wanted = table if records is None else table.slice(0, records - counted.records)
        counted.records += wanted.num_rows
        counted.bytes += sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in wanted.columns)
        counted.ended = trio.current_time()
        if counted.records == records:
            scope.cancel()
            return


async def _wait(
    consumer: Consumer,
    counted: _Counted,
    ends: Offsets,
    records: int | None,
    timeout_s: float,
    bar: output.Progress,
) -> bool:
    """Return True at the end, False if nothing came for so long."""
    shown, shown_bytes = 0, 0
    while counted.records != records:
        if records is None and all(consumer.position(partition) >= end for partition, end in ends.items()):
            return True
        if trio.current_time() - counted.ended >= timeout_s:
            return False
        await trio.sleep(LOOK_S)
        bar.advance(counted.records - shown)
        speed = (counted.bytes - shown_bytes) / MB / LOOK_S
        bar.describe(f"Reading: {(counted.records - shown) / LOOK_S:.0f} records/s, {speed:.1f} MB/s")
        shown, shown_bytes = counted.records, counted.bytes
    return True
