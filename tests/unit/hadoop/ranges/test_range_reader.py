import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.client.cluster.config import ClientConfig
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.errors import CorruptBatchError
from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.ranges.range_reader import RangeReader, _Handover
from pipeline.hadoop.ranges.rows import row_schema
from pipeline.model import TopicPartition
from pipeline.records.batch import set_base_offset
from pipeline.records.compression import Codec
from pipeline.records.memory import MIN_OPENED_BYTES, OPENED_BATCHES
from tests.support.bombs import bomb

RANGE = OffsetRange(partition=0, start=1, end=2)


def opened(*batches: bytearray, max_opened_bytes: int = MIN_OPENED_BYTES) -> list[pa.RecordBatch]:
    for offset, batch in enumerate(batches):
        set_base_offset(batch, 0, offset)
    fetched = FetchedBatches(
        topic_partition=TopicPartition("t", 0),
        data=memoryview(b"".join(batches)),
        position=0,
        next_offset=len(batches),
        high_watermark=len(batches),
        log_start_offset=0,
    )
    reader = RangeReader(
        client=ClientConfig(),
        schema=to_arrow_schema(row_schema(include_batches=False), timezone="UTC"),
        include_batches=False,
        fail_on_data_loss=True,
        max_opened_bytes=max_opened_bytes,
    )
    handover = _Handover()
    row_count = reader._open("t", RANGE, fetched, handover)
    handover.put_last(None)
    rows = list(handover.batches())
    assert sum(part.num_rows for part in rows) == row_count
    return rows


def test_a_fetch_that_holds_much_is_opened_in_portions() -> None:
    (row,) = opened(*(bomb(Codec.ZSTD, 40 << 20, 0) for _ in range(3)))
    assert row.column("offset").to_pylist() == [1]
    assert OPENED_BATCHES.held_bytes == 0


def test_a_batch_that_holds_too_much_ends_the_load_and_says_what_to_raise() -> None:
    batches = [bomb(Codec.ZSTD, 2 << 20, 0), bomb(Codec.GZIP, 80 << 20, 0)]
    with pytest.raises(CorruptBatchError, match=r"offset 1: t-0: .* raise max\.opened\.bytes of the load"):
        opened(*batches)
    assert len(opened(*batches, max_opened_bytes=81 << 20)) == 1
