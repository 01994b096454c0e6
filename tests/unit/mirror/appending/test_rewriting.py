"""Batches for an idempotent producer: byte for byte those that a foreign client would send for the same records."""

import struct
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.mirror.appending.rewriting import outgoing_batches
from pipeline.model import TopicPartition
from pipeline.records.batch import read_header, set_base_offset, set_log_append_time, write_crc, write_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.record import iterate_records
from tests.support.transactions import CONTROL, TRANSACTIONAL, marker, with_attributes

CLICKS = TopicPartition("clicks", 0)
TIME_MS = 1_600_000_000_000
RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=9),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
        st.integers(0, 5000),
    ),
    min_size=1,
    max_size=12,
)


def foreign_batch(records: Any, codec: int, *, transactional: bool, producer: tuple[int, int, int]) -> bytearray:
    producer_id, epoch, sequence = producer
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=transactional,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 20,
    )
    for number, (key, value, headers, delta_ms) in enumerate(records):
        assert builder.append(number, TIME_MS + delta_ms, key, value, headers)
    return bytearray(builder.build())


def fetched(*batches: bytearray, position: int = 0, aborted: Any = ()) -> FetchedBatches:
    data = memoryview(b"".join(batches))
    end = read_header(batches[-1]).next_offset
    return FetchedBatches(
        topic_partition=CLICKS,
        data=data,
        position=position,
        next_offset=end,
        high_watermark=end,
        log_start_offset=0,
        aborted=aborted,
    )


def at(offset: int, batch: bytearray, leader_epoch: int = 7) -> bytearray:
    write_header(batch, read_header(batch)._replace(base_offset=offset, partition_leader_epoch=leader_epoch))
    return batch


def plain(offset: int, *values: bytes, producer_id: int = -1, attributes: int = 0) -> bytearray:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    for value in values:
        builder.append(b"key", value, (), TIME_MS)
    batch = with_attributes(builder.build(producer_id, 0, 0), attributes)
    set_base_offset(batch, 0, offset)
    return batch


def seen(batch: bytearray) -> list[tuple[Any, ...]]:
    """What a foreign reader finds in a batch."""
    reader = DefaultRecordBatch(bytes(batch))
    assert reader.validate_crc()
    return [(record.timestamp, record.key, record.value, record.headers) for record in reader]


@given(RECORDS, st.sampled_from([0, 1, 3, 4]), st.booleans(), st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_a_rewritten_batch_is_that_of_a_foreign_producer(
    records: Any, codec: int, transactional: bool, producer_id: int, sequence: int
) -> None:
    source = at(1000, foreign_batch(records, codec, transactional=transactional, producer=(5, 3, 99)))
    wanted = foreign_batch(records, codec, transactional=False, producer=(producer_id, 2, sequence))
    (outgoing,) = outgoing_batches(fetched(source, position=1000))
    assert (outgoing.records, outgoing.next_offset) == (len(records), 1000 + len(records))
    sent = outgoing.rewritten(producer_id, 2, sequence)
    wanted_header = read_header(wanted)._replace(partition_leader_epoch=-1)
    write_header(wanted, wanted_header)
    if codec == 1:  # gzip writes the time into its frame
        assert seen(sent) == seen(wanted)
        assert sent[21:61] == source[21:23].replace(b"\x11", b"\x01") + sent[23:61]
    else:
        assert sent == wanted


def test_markers_and_aborted_transactions_are_left_out() -> None:
    batches = [
        plain(0, b"a1", producer_id=7, attributes=TRANSACTIONAL),
        plain(1, b"c1", producer_id=8, attributes=TRANSACTIONAL),
        plain(2, b"plain of 7", producer_id=7),
        plain(3, b"a2", producer_id=7, attributes=TRANSACTIONAL),
        marker(4, commits=False),
        plain(5, b"committed later", producer_id=7, attributes=TRANSACTIONAL),
        marker(6, commits=True),
        plain(7, b"a3", producer_id=7, attributes=TRANSACTIONAL),
        marker(8, commits=False),
        plain(9, b"end"),
    ]
    assert read_header(batches[4]).attributes & CONTROL
    found = list(outgoing_batches(fetched(*batches, aborted=((7, 7), (7, 0)))))
    values = [record.value for batch in found for record in iterate_records(batch.data)]
    assert values == [b"c1", b"plain of 7", b"committed later", b"end"]
    assert [batch.next_offset for batch in found] == [2, 3, 6, 10]
    assert all(read_header(batch.rewritten(1, 0, 0)).attributes == 0 for batch in found)


def test_a_transaction_that_was_aborted_before_the_position_began_is_left_out() -> None:
    batches = [plain(5, b"a", producer_id=7, attributes=TRANSACTIONAL), marker(6, commits=False)]
    assert list(outgoing_batches(fetched(*batches, position=5, aborted=((7, 1),)))) == []


def test_records_keep_the_time_of_the_sources_append() -> None:
    builder = BatchBuilder(Codec.LZ4, 1 << 20)
    for number in range(3):
        builder.append(b"k", b"%d" % number, (("h", b"v"),), TIME_MS + 50 * number)
    batch = builder.build()
    set_log_append_time(batch, 0, TIME_MS + 999)
    (outgoing,) = outgoing_batches(fetched(batch))
    sent = outgoing.rewritten(1, 0, 0)
    assert read_header(sent).codec is Codec.LZ4
    assert seen(sent) == [(TIME_MS + 999, b"k", b"%d" % number, [("h", b"v")]) for number in range(3)]


@pytest.mark.parametrize(("position", "left"), [(0, [b"a", b"c", b"d"]), (11, [b"c", b"d"]), (13, [b"d"])])
def test_records_that_are_left_of_a_batch_become_a_batch_without_gaps(position: int, left: list[bytes]) -> None:
    batch = plain(10, b"a", b"c", b"d")
    # As after compaction: offsets 10, 12 and 13, the last two at a distance from the first of 2 and 3.
    size = 1 + batch[61] // 2
    for start, delta in ((61 + size, 2), (61 + 2 * size, 3)):
        batch[start + 3] = delta * 2  # zigzag
    struct.pack_into(">i", batch, 23, 3)
    write_crc(batch, 0, len(batch))
    assert [record.offset for record in iterate_records(batch)] == [10, 12, 13]
    (outgoing,) = outgoing_batches(fetched(batch, position=position))
    sent = outgoing.rewritten(1, 0, 5)
    header = read_header(sent)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, len(left) - 1, len(left))
    assert [value for _, _, value, _ in seen(sent)] == left
    assert (outgoing.records, outgoing.next_offset) == (len(left), 14)


def test_a_batch_of_which_nothing_is_left_is_not_sent() -> None:
    empty = plain(0, b"a")[:61]
    write_header(empty, read_header(empty)._replace(batch_length=49, record_count=0))
    assert list(outgoing_batches(fetched(empty))) == []
    assert list(outgoing_batches(fetched(plain(0, b"a", b"b"), position=2))) == []
