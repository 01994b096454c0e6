"""Whatever a broker sends: `columns()` hands out the records of `records()`, and refuses the same batches."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.consumer.columns import ClosedPiece, OpenedPortion, RefusedBatch, next_opened, opened_portions
from pipeline.client.consumer.fetch_plan import FetchedBatches, judge_answer
from pipeline.errors import CorruptBatchError
from pipeline.model import TopicPartition
from pipeline.protocol.messages.fetch import PartitionData
from pipeline.records.batch import HEADER_SIZE, LOG_OVERHEAD, iterate_headers, read_header, write_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec, compress
from pipeline.records.memory import MIN_OPENED_BYTES
from pipeline.records.opening import attempts, open_uncharged
from pipeline.records.record import Record, records_of_payload

T0 = TopicPartition("t", 0)
BYTES = st.none() | st.binary(max_size=40) | st.just(b"x" * 300)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=90)), max_size=3).map(tuple)
TIMES = st.integers(-1, 1000) | st.integers(-(2**61), 2**61)
FIELDS = st.lists(st.tuples(BYTES, BYTES, HEADERS, TIMES), min_size=1, max_size=12)
BYTE = st.sampled_from((0, 1, 2, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)) | st.integers(0, 255)
DAMAGE = st.lists(st.tuples(st.sampled_from("=+-<"), st.integers(0, 400), BYTE), max_size=3)
INT32 = st.integers(-1, 40) | st.sampled_from((2**31 - 1, 2**31 - 2, 10**6))
INT64 = st.sampled_from((0, -1, 2**63 - 1, -(2**63), 2**62))
HEADER_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "record_count": INT32,
        "last_offset_delta": INT32,
        "base_timestamp": INT64,
        "max_timestamp": INT64,
        "attributes": st.integers(0, 0x7F),
    },
)
BATCHES = st.lists(
    st.tuples(FIELDS, st.sampled_from(Codec), DAMAGE, DAMAGE, st.none() | HEADER_FIELDS), min_size=1, max_size=5
)


def damaged(data: bytes, damage: Sequence[tuple[str, int, int]]) -> bytes:
    """Bytes overwritten, put in, taken out, or all behind a place cut off."""
    changed = bytearray(data)
    for kind, place, byte in damage:
        at = place % (len(changed) + 1)
        changed[at:] = {
            "=": bytes([byte]) + changed[at + 1 :],
            "+": bytes([byte]) + changed[at:],
            "-": changed[at + 1 :],
            "<": b"",
        }[kind]
    return bytes(changed)


def batch_of(fields: Any, codec: Codec, inner: Any, outer: Any, given: Any) -> bytearray:
    """A batch with a true checksum and damaged records, compressed data and header."""
    builder = BatchBuilder(Codec.NONE, 1 << 30)
    for each in fields:
        builder.append(*each)
    batch = builder.build()
    section = damaged(bytes(compress(codec, damaged(bytes(batch[HEADER_SIZE:]), inner))), outer)
    changed = bytearray(HEADER_SIZE) + section
    header = read_header(batch)._replace(batch_length=len(changed) - LOG_OVERHEAD, attributes=int(codec))
    write_header(changed, header._replace(**(given or {})))
    return changed


def answer_of(batches: Any) -> FetchedBatches | None:
    """What a fetcher takes of a broker's answer with these batches, at rising offsets."""
    answer = bytearray()
    offset = 100
    for number, each in enumerate(batches):
        batch = batch_of(*each)
        try:
            header = read_header(batch)
        except CorruptBatchError:
            pass
        else:
            write_header(batch, header._replace(base_offset=offset + number % 2))
            offset += number % 2 + header.last_offset_delta + 1
        answer += batch
    data = PartitionData(partition_index=0, high_watermark=2**62, records=memoryview(bytes(answer)))
    return judge_answer(T0, 103, data).batches


def by_records(batches: FetchedBatches, max_opened_bytes: int) -> tuple[list[Record], Any]:
    """The records of sound batches, and the first batch that is refused with the kind of its error."""
    found: list[Record] = []
    for start, header in iterate_headers(batches.data):
        if header.is_control or header.next_offset <= batches.position:
            continue
        try:
            payload = open_uncharged(batches.data, start, header, max_opened_bytes)
            if payload is None:
                for attempt in attempts(batches.data, start, header, max_opened_bytes):
                    with attempt.ask() as charge:
                        payload = attempt.open(charge)
                    if payload is not None:
                        break
            records = list(records_of_payload(payload or b"", header))
        except CorruptBatchError as error:
            return found, (header.base_offset, type(error))
        found += [record for record in records if record.offset >= batches.position]
    return found, None


def by_columns(batches: FetchedBatches, max_opened_bytes: int) -> tuple[list[Record], Any]:
    """The same of `columns()`."""
    names = ["offset", "timestamp", "key", "value", "headers"]
    portions = opened_portions([ClosedPiece(T0, batches.data, batches.position)], max_opened_bytes, names)
    found: list[Record] = []
    position = batches.position
    while opened := next_opened(portions):
        for each in opened:
            if isinstance(each, RefusedBatch):
                return found, (each.header.base_offset, type(each.error))
            assert isinstance(each, OpenedPortion)
            assert each.position == position <= each.next_offset
            position = each.next_offset
            each.table.validate(full=True)
            columns = [each.table.column(name) for name in names]
            columns[1] = columns[1].cast("int64")
            for offset, time, key, value, pairs in zip(*(column.to_pylist() for column in columns), strict=True):
                headers = tuple((pair["key"], pair["value"]) for pair in pairs)
                found.append(Record(offset, time, key, value, headers))
    assert position == batches.next_offset
    return found, None


@given(BATCHES, st.sampled_from((MIN_OPENED_BYTES, 100)))
def test_columns_are_the_records_whatever_a_broker_sends(batches: Any, max_opened_bytes: int) -> None:
    answer = answer_of(batches)
    if answer is not None:
        assert by_columns(answer, max_opened_bytes) == by_records(answer, max_opened_bytes)
