"""Records of aborted transactions: counted once, by hour, where they begin in the range."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.consumer.committed_batches import aborted_batches, committed_data
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.hadoop.commit.manifest import AbortedRecords
from pipeline.hadoop.ranges.aborted_records import AbortedTally, decode_aborted, joined_aborted
from pipeline.model import TopicPartition
from pipeline.records.batch import CONTROL, TRANSACTIONAL, BatchHeader, iterate_headers, read_header, write_crc
from pipeline.records.tally import HOUR_MS
from tests.support.mirrors import batch_at


def header_at(offset: int, hour: int = 0, records: int = 2) -> BatchHeader:
    return read_header(batch_at(offset, *[b"v"] * records))._replace(
        base_offset=offset, base_timestamp=hour * HOUR_MS + 5
    )


def test_batches_are_counted_by_hour_and_only_if_they_begin_in_the_range() -> None:
    tally = AbortedTally(3, 10, 20)
    for offset, hour in ((8, 0), (10, 0), (12, 1), (14, 0), (14, 0), (10, 0), (18, 1), (20, 1)):
        tally.add(header_at(offset, hour))
    assert decode_aborted(3, tally.encode()) == [
        AbortedRecords(partition=3, hour_ms=0, records=4, first_offset=10, last_offset=15),
        AbortedRecords(partition=3, hour_ms=HOUR_MS, records=4, first_offset=12, last_offset=19),
    ]
    assert AbortedTally(3, 0, 9).encode() is None and decode_aborted(3, None) == []


@given(st.lists(st.integers(0, 3), max_size=20), st.integers(1, 5))
def test_tasks_that_share_a_range_count_as_one(hours: list[int], parts: int) -> None:
    headers = [header_at(2 * number, hour) for number, hour in enumerate(hours)]
    whole = AbortedTally(0, 0, 2 * len(hours) or 1)
    for header in headers:
        whole.add(header)
    size = 2 * len(hours) // parts + 1
    found = []
    for start in range(0, max(1, 2 * len(hours)), size):
        tally = AbortedTally(0, start, start + size)
        for header in headers:
            tally.add(header)
        found += decode_aborted(0, tally.encode())
    assert joined_aborted(found) == joined_aborted(decode_aborted(0, whole.encode()))


def made(offset: int, attributes: int, producer: int) -> bytes:
    data = bytearray(batch_at(offset, b"v"))
    data[21:23] = attributes.to_bytes(2, "big")
    data[43:51] = producer.to_bytes(8, "big")
    data[51:57] = bytes(6)
    write_crc(data, 0, len(data))
    return bytes(data)


def test_what_is_left_out_and_what_is_kept_are_all_batches() -> None:
    data = b"".join(
        (
            made(0, TRANSACTIONAL, 7),
            made(1, TRANSACTIONAL, 8),
            made(2, TRANSACTIONAL, 7),
            made(3, TRANSACTIONAL | CONTROL, 7),
            made(4, TRANSACTIONAL, 7),
        )
    )
    fetched = FetchedBatches(
        topic_partition=TopicPartition("t", 0),
        position=0,
        data=memoryview(data),
        next_offset=5,
        aborted=((7, 0),),
        high_watermark=5,
        log_start_offset=0,
    )
    assert [header.base_offset for header in aborted_batches(fetched)] == [0, 2]
    assert [header.base_offset for _, header in iterate_headers(committed_data(fetched))] == [1, 3, 4]
