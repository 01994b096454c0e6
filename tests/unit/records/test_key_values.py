import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import CorruptBatchError
from pipeline.records.batch import HEADER_SIZE, read_header, write_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.key_values import keys_and_values
from pipeline.records.record import records_of_batch

Content = list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]]

fields = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=200)
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5)), max_size=2)
records = st.lists(st.tuples(fields, fields, headers, st.integers(0, 2**41)), min_size=1, max_size=5)


def built(content: Content, codec: Codec) -> bytes:
    builder = BatchBuilder(codec, 1 << 20)
    for key, value, record_headers, timestamp_ms in content:
        assert builder.append(key, value, record_headers, timestamp_ms)
    return bytes(builder.build())


@given(records, st.sampled_from(list(Codec)))
@settings(max_examples=100)
def test_keys_and_values_are_those_of_the_records(content: Content, codec: Codec) -> None:
    batch = b"before" + built(content, codec)
    header = read_header(batch, 6)
    expected = [(record.key, record.value) for record in records_of_batch(batch, 6, header)]
    assert keys_and_values(batch, 6, header) == expected == [(key, value) for key, value, _, _ in content]


@given(st.binary(max_size=60), st.integers(1, 3))
def test_garbage_is_corrupt_or_harmless(payload: bytes, count: int) -> None:
    good = built([(b"k", b"v", [], 0)], Codec.NONE)
    batch = bytearray(good[:HEADER_SIZE]) + payload
    header = read_header(good)._replace(batch_length=len(batch) - 12, record_count=count, last_offset_delta=count - 1)
    write_header(batch, header)
    try:
        assert len(keys_and_values(batch, 0, header)) == count
    except CorruptBatchError:
        return


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_a_batch_that_is_too_short_is_corrupt(cut: int) -> None:
    batch = built([(b"key", b"value", [], 0)], Codec.NONE)[:-cut]
    header = read_header(batch)._replace(batch_length=len(batch) - 12)
    with pytest.raises(CorruptBatchError):
        keys_and_values(batch, 0, header)
