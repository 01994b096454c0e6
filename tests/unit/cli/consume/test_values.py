"""Values of a batch alone: those that the reader of records finds, or None where that reader must look."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.consume.values import values_of_payload
from pipeline.errors import CorruptBatchError
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.record import records_of_payload

DATA = st.none() | st.binary(max_size=200) | st.integers(60, 17_000).map(bytes)
HEADERS = st.sampled_from([(), (), (), (("a", b"1"),)])
ROWS = st.lists(st.tuples(DATA, DATA, HEADERS, st.integers(0, 2**40)), min_size=1, max_size=8)


def built(rows: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int]]) -> BatchBuilder:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    for key, value, headers, timestamp_ms in rows:
        assert builder.append(key, value, headers, timestamp_ms)
    return builder


@given(ROWS)
def test_values_are_those_of_the_records(
    rows: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int]],
) -> None:
    payload, header = built(rows).payload()
    values = values_of_payload(payload, header.record_count)
    if values is None:
        assert any(headers or len(key or b"") + len(value or b"") > 8_000 for key, value, headers, _ in rows)
    else:
        assert values == [record.value for record in records_of_payload(payload, header)]


def test_a_thousand_records_of_usual_size_have_values() -> None:
    rows = [(None if n % 2 else b"%d" % n, b"%d" % n * (n % 50), (), n) for n in range(9_000)]
    payload, header = built(rows).payload()  # type: ignore[arg-type]
    assert values_of_payload(payload, header.record_count) == [value for _, value, _, _ in rows]


@given(ROWS, st.data())
def test_values_of_damaged_bytes_are_those_of_the_records_or_none(
    rows: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int]], data: st.DataObject
) -> None:
    payload, header = built(rows).payload()
    position = data.draw(st.integers(0, min(len(payload), 60) - 1))
    damaged = payload[:position] + data.draw(st.binary(max_size=2)) + payload[position + 1 :]
    values = values_of_payload(damaged, header.record_count)
    if values is not None:
        try:
            expected = [record.value for record in records_of_payload(damaged, header)]
        except CorruptBatchError as error:
            assert "offset" in str(error) or "timestamp" in str(error)  # which nobody asked for
        else:
            assert values == expected
