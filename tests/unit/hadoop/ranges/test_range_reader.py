from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.client.cluster.config import ClientConfig
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.errors import CorruptBatchError
from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.ranges import range_reader
from pipeline.hadoop.ranges import rows as rows_module
from pipeline.hadoop.ranges.plan import BadBatch
from pipeline.hadoop.ranges.range_reader import RangeReader, _Reading
from pipeline.hadoop.ranges.rows import row_schema
from pipeline.model import TopicPartition
from pipeline.records.batch import read_header, set_base_offset
from pipeline.records.builder import BatchBuilder
from pipeline.records.columns import open_batches
from pipeline.records.compression import Codec
from pipeline.records.memory import MIN_OPENED_BYTES, OPENED_BATCHES
from tests.support.bad_batches import BAD_BATCHES, patched, sound
from tests.support.bombs import bomb
from tests.support.transactions import TRANSACTIONAL, marker, transactional

RANGE = OffsetRange(partition=0, start=1, end=2)


def fetched(*batches: bytearray, aborted: tuple[tuple[int, int], ...] = ()) -> FetchedBatches:
    offset = 0
    for batch in batches:
        set_base_offset(batch, 0, offset)
        offset = read_header(batch).next_offset
    return FetchedBatches(
        topic_partition=TopicPartition("t", 0),
        data=memoryview(b"".join(batches)),
        position=0,
        next_offset=offset,
        high_watermark=offset,
        log_start_offset=0,
        aborted=aborted,
    )


def opened(batches: FetchedBatches, loaded: OffsetRange, begin: int | None = None, **settings: Any) -> list[Any]:
    """The record batches of what was fetched."""
    with_rows = settings.get("on_bad_batch") is BadBatch.ROW
    reader = RangeReader(
        client=ClientConfig(),
        schema=to_arrow_schema(row_schema(include_batches=with_rows), timezone="UTC"),
        include_batches=with_rows,
        fail_on_data_loss=True,
        **({"max_opened_bytes": MIN_OPENED_BYTES} | settings),
    )
    reading = _Reading(reader, "t", loaded, loaded.start if begin is None else begin)
    reading.handover = Unbounded()  # type: ignore[assignment]
    reading.open(batches)
    return reading.handover.taken  # type: ignore[attr-defined, no-any-return]


class Unbounded:
    def __init__(self) -> None:
        self.taken: list[pa.RecordBatch] = []

    def put(self, rows: pa.RecordBatch) -> None:
        self.taken.append(rows)


def test_a_fetch_that_holds_much_is_opened_in_portions() -> None:
    (row,) = opened(fetched(*(bomb(Codec.ZSTD, 40 << 20, 0) for _ in range(3))), RANGE)
    assert row.column("offset").to_pylist() == [1]
    assert OPENED_BATCHES.held_bytes == 0


@pytest.mark.long
def test_a_batch_that_holds_too_much_ends_the_load_and_says_what_to_raise() -> None:
    batches = fetched(bomb(Codec.ZSTD, 2 << 20, 0), bomb(Codec.GZIP, 80 << 20, 0))
    with pytest.raises(CorruptBatchError, match=r"offset 1: t-0: .* raise max\.opened\.bytes of the load"):
        opened(batches, RANGE)
    assert len(opened(batches, RANGE, max_opened_bytes=81 << 20)) == 1


@pytest.mark.parametrize("kind", BAD_BATCHES)
def test_a_batch_that_cannot_be_opened_is_a_row_and_the_next_one_follows(kind: str) -> None:
    batch = BAD_BATCHES[kind]()
    batches = fetched(sound(b"0", b"1"), batch, sound(b"after"))
    header = read_header(batch)
    loaded = OffsetRange(partition=0, start=1, end=batches.next_offset)
    rows = [row for part in opened(batches, loaded, on_bad_batch=BadBatch.ROW) for row in part.to_pylist()]
    assert [(row["offset"], row["batch_fault"] is not None) for row in rows] == [
        (1, False),
        (2, True),
        (header.next_offset, False),
    ]
    assert rows[1]["value"] == bytes(batch)
    assert (rows[1]["batch_base_offset"], rows[1]["batch_records"]) == (2, header.record_count)
    assert (rows[1]["batch_crc"], rows[1]["batch_bytes"]) == (header.crc, len(batch))
    assert rows[2]["value"] == b"after"
    with pytest.raises(CorruptBatchError, match="offset 2: t-0"):
        opened(batches, loaded)
    skipped = [row for part in opened(batches, loaded, on_bad_batch=BadBatch.SKIP) for row in part.to_pylist()]
    assert [row["offset"] for row in skipped] == [1, header.next_offset]


def test_a_large_batch_is_several_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MAX_PIECE_BYTES", 30)
    batch = BAD_BATCHES["no codec"]()
    parts = opened(fetched(batch), OffsetRange(partition=0, start=0, end=2), on_bad_batch=BadBatch.ROW)
    rows = [row for part in parts for row in part.to_pylist()]
    assert b"".join(row["value"] for row in rows) == bytes(batch)
    assert [(row["key"], row["batch_records"]) for row in rows] == [(b"0", 2), (b"1", 0), (b"2", 0)]


def test_a_batch_on_a_border_belongs_to_the_task_in_which_it_begins() -> None:
    batches = fetched(BAD_BATCHES["no codec"]())
    halves = [OffsetRange(partition=0, start=start, end=start + 1) for start in range(2)]
    records = [
        [
            row["batch_records"]
            for part in opened(batches, half, 0, on_bad_batch=BadBatch.ROW)
            for row in part.to_pylist()
        ]
        for half in halves
    ]
    assert records == [[2], []]
    (row,) = opened(batches, halves[1], 1, on_bad_batch=BadBatch.ROW)
    assert (row.column("offset").to_pylist(), row.column("batch_records").to_pylist()) == ([1], [1])


def test_batches_of_aborted_transactions_are_left_out_and_not_opened() -> None:
    garbage = patched(transactional(b"a", producer_id=7), 21, ">h", TRANSACTIONAL | 7)
    batches = fetched(
        transactional(b"aborted", producer_id=7),
        transactional(b"committed", producer_id=8),
        garbage,
        sound(b"plain"),
        marker(0, commits=False),
        transactional(b"committed later", producer_id=7),
        marker(0, commits=True),
        transactional(b"aborted later", producer_id=7),
        aborted=((7, 7), (7, 0)),
    )
    loaded = OffsetRange(partition=0, start=0, end=batches.next_offset)
    values = [value for part in opened(batches, loaded) for value in part.column("value").to_pylist()]
    assert values == [b"committed", b"plain", b"committed later"]


def test_rows_come_once_and_in_order_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(first: int) -> bytearray:
        builder = BatchBuilder(Codec.ZSTD if first % 2 else Codec.NONE, 1 << 20)
        for number in range(first, first + 7):
            assert builder.append(None, b"%d" % number * 50, [("h", b"x" * 100)], number)
        return builder.build()

    batches = fetched(*(built(7 * number) for number in range(9)))
    whole = OffsetRange(partition=0, start=3, end=60)
    monkeypatch.setattr(range_reader, "PORTION_RECORDS", 20)
    monkeypatch.setattr(range_reader, "HANDED_BYTES", 450)
    parts = opened(batches, whole)
    assert [offset for part in parts for offset in part.column("offset").to_pylist()] == list(range(3, 60))
    assert {part.num_rows for part in parts} == {2, 1}
    assert [len(columns) for columns in map(open_batches, range_reader.batch_portions(batches.data))] == [
        14,
        14,
        14,
        14,
        7,
    ]
