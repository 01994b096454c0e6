"""The layout of records: both renderings give the bytes of a plain implementation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.consume.column_layout import render_columns
from pipeline.cli.consume.layout import Layout, parse_layout, render_records, simple_layout
from pipeline.errors import ConfigurationError
from pipeline.model import TopicPartition
from pipeline.records.builder import BatchBuilder
from pipeline.records.columns import open_batches
from pipeline.records.compression import Codec
from pipeline.records.record import Record, iterate_records

T1 = TopicPartition("tëst", 3)
DATA = st.none() | st.binary(max_size=5)
HEADERS = st.lists(st.tuples(st.text(max_size=3), DATA), max_size=2).map(tuple)
ROWS = st.lists(st.tuples(DATA, DATA, HEADERS), min_size=1, max_size=8)
PARTS = st.sampled_from([*(f"%{token}" for token in "sSRkKtpoT"), "%%", ": ", "\\n", "\\x00", "\\t", "é"])


def plainly(text: str, record: Record, null: bytes) -> bytes:
    """One character after the other."""
    shown = bytearray()
    rest = iter(text)
    for letter in rest:
        if letter == "\\":
            named = next(rest)
            shown += bytes([int(next(rest) + next(rest), 16)]) if named == "x" else {"n": b"\n", "t": b"\t"}[named]
        elif letter == "%":
            match next(rest):
                case "%":
                    shown += b"%"
                case "s":
                    shown += null if record.value is None else record.value
                case "k":
                    shown += null if record.key is None else record.key
                case "S":
                    shown += str(-1 if record.value is None else len(record.value)).encode()
                case "K":
                    shown += str(-1 if record.key is None else len(record.key)).encode()
                case "R":
                    shown += b"\xff" * 4 if record.value is None else len(record.value).to_bytes(4, "big")
                case "t":
                    shown += T1.topic.encode()
                case "p":
                    shown += str(T1.partition).encode()
                case "o":
                    shown += str(record.offset).encode()
                case "T":
                    shown += str(record.timestamp_ms).encode()
        else:
            shown += letter.encode()
    return bytes(shown)


@given(ROWS, st.lists(PARTS, min_size=1, max_size=6), st.sampled_from([b"", b"NULL"]))
def test_both_renderings_are_those_of_a_plain_implementation(
    rows: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]], parts: list[str], null: bytes
) -> None:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    for number, (key, value, headers) in enumerate(rows):
        assert builder.append(key, value, headers, 1000 + number)
    batch = builder.build()
    records = list(iterate_records(batch))
    text = "".join(parts)
    for layout, plain in ((parse_layout(text, null=null), text), (simple_layout(None, b"\n", null=null), "%s\\n")):
        expected = b"".join(plainly(plain, record, null) for record in records)
        assert render_records(layout, T1, records) == expected
        assert bytes(render_columns(layout, T1, open_batches(batch))) == expected


def test_headers_are_listed() -> None:
    record = Record(0, 0, None, b"v", (("a", b"1"), ("b", None)))
    assert render_records(parse_layout("%h %s"), T1, [record]) == b"a=1,b=NULL v"


def test_keys_come_before_their_separator() -> None:
    layout = simple_layout(b"::", b"\0")
    assert layout == Layout(parts=("k", b"::", "s", b"\0"))
    assert render_records(layout, T1, [Record(0, 0, b"k", b"v", ()), Record(1, 0, None, b"w", ())]) == b"k::v\0::w\0"


@pytest.mark.parametrize("text", ["%", "%x", "a%s%", "\\q", "%s\\"])
def test_a_layout_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--format"):
        parse_layout(text)
