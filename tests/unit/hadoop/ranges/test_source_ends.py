"""The last loaded batch beside what the source has in its place."""

from typing import Any

import pytest

from pipeline.client.admin.leader_epochs import NO_EPOCH_END, EpochEnd
from pipeline.hadoop.ranges.source_ends import Likeness, end_of_partition, last_header_before, likeness_of
from pipeline.records.batch import DELETE_HORIZON, BatchHeader, read_header, set_base_offset
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.recompression import recompressed

NOON_MS = 1_700_006_400_000


def batch(base_offset: int, *values: bytes, epoch: int = 3) -> bytearray:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    for number, value in enumerate(values):
        assert builder.append(None, value, (), NOON_MS + number)
    made = builder.build()
    set_base_offset(made, 0, base_offset)
    made[12:16] = epoch.to_bytes(4, "big")
    return made


BATCH = batch(10, b"a" * 500, b"b" * 500, b"c" * 500)
HEADER = read_header(BATCH)
LOADED = end_of_partition(0, HEADER)


def known(**changes: Any) -> BatchHeader:
    return HEADER._replace(**changes)


@pytest.mark.parametrize(
    ("header", "likeness"),
    [
        (HEADER, Likeness.SAME),
        (known(partition_leader_epoch=9), Likeness.SAME),
        (known(crc=1), Likeness.DIFFERENT),
        (known(crc=1, attributes=4), Likeness.RECOMPRESSED),
        (known(crc=1, attributes=4, max_timestamp=NOON_MS + 7), Likeness.DIFFERENT),
        (known(base_offset=9), Likeness.DIFFERENT),
        (known(last_offset_delta=3), Likeness.DIFFERENT),
        (known(crc=1, record_count=2), Likeness.UNKNOWN),
        (known(crc=1, attributes=DELETE_HORIZON), Likeness.UNKNOWN),
        (None, Likeness.UNKNOWN),
    ],
)
def test_a_header_in_the_place_of_the_last_loaded_batch(header: BatchHeader | None, likeness: Likeness) -> None:
    assert likeness_of(LOADED, header, NO_EPOCH_END, log_start_offset=0) is likeness


@pytest.mark.parametrize(
    ("epoch", "end", "log_start_offset", "likeness"),
    [
        (3, 13, 0, Likeness.UNKNOWN),
        (3, 10, 0, Likeness.DIFFERENT),
        (2, 30, 0, Likeness.DIFFERENT),
        (2, 30, 20, Likeness.UNKNOWN),
        (2, 5, 20, Likeness.DIFFERENT),
    ],
)
def test_the_epoch_decides_where_the_batch_was_removed(
    epoch: int, end: int, log_start_offset: int, likeness: Likeness
) -> None:
    found = likeness_of(LOADED, None, EpochEnd(leader_epoch=epoch, end_offset=end), log_start_offset=log_start_offset)
    assert found is likeness


def test_a_recompressed_batch_is_the_same_batch() -> None:
    again = read_header(recompressed(memoryview(BATCH), Codec.ZSTD).data)
    assert likeness_of(LOADED, again, NO_EPOCH_END, log_start_offset=0) is Likeness.RECOMPRESSED


def test_the_last_header_is_that_of_a_batch_which_begins_in_the_range() -> None:
    data = memoryview(bytes(BATCH + batch(13, b"d") + batch(14, b"e")))
    for end, base_offset in ((11, 10), (13, 10), (14, 13), (20, 14)):
        found = last_header_before(data, end)
        assert found is not None
        assert read_header(found).base_offset == base_offset
    assert last_header_before(data, 10) is None
