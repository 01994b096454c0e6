"""Lines as rows: keys, times, JSON, and lines at fault."""

import pytest

from pipeline.cli.produce.lines import LineError
from pipeline.cli.produce.rows import Row, RowOptions, data_of, parse_header, parse_row, split_lines

KEYED = RowOptions(key_separator=b"::", null_values=frozenset({b""}))


def test_keys_are_split_at_the_first_separator_and_empty_values_may_be_none() -> None:
    assert split_lines([b"a::b::c", b"::", b"k::"], 1, KEYED) == ([b"a", b"", b"k"], [b"b::c", None, None])
    assert split_lines([b"a", b""], 1, RowOptions(fixed_key=b"k")) == (b"k", [b"a", b""])


def test_the_first_line_without_separator_is_named() -> None:
    with pytest.raises(LineError, match="line 12 does not contain the separator '::'"):
        split_lines([b"a::b", b"c::d", b"e:f", b"g"], 10, KEYED)


def test_a_time_before_key_and_value() -> None:
    timed = RowOptions(key_separator=b":", timestamps=True)
    assert parse_row(b"1700000000000:k:v:w", 1, timed) == Row(b"k", b"v:w", (), 1700000000000)
    assert parse_row(b"5\tv", 1, RowOptions(timestamps=True)) == Row(None, b"v", (), 5)
    for line in (b"x:k:v", b"5", b"99999999999999999999:k:v", "²:k:v".encode()):
        with pytest.raises(LineError, match="line 7"):
            parse_row(line, 7, timed)


def test_a_json_line_with_everything() -> None:
    line = (
        b'{"topic": "t", "offset": 3, "timestamp": 5, "key": {"base64": "/w=="}, "value": "\\u00e9", '
        b'"headers": {"a": ["1", null], "b": {"base64": "AA=="}}}'
    )
    row = parse_row(line, 1, RowOptions(json=True, timestamps=True))
    assert row == Row(b"\xff", "é", (("a", b"1"), ("a", None), ("b", b"\0")), 5)
    assert data_of(row.value) == "é".encode()
    assert parse_row(line, 1, RowOptions(json=True)).timestamp_ms is None
    assert data_of({"a": [1]}) == b'{"a": [1]}'


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"value": {"base64": "?"}}',
        b'{"value": 1, "headers": []}',
        b"\xff",
        b'{"value": 1, "headers": {"\\ud800": "x"}}',
        b'{"value": 1, "headers": {"a": "\\ud800"}}',
        b'{"value": ' + b"[" * 100_000,
    ],
)
def test_a_json_line_at_fault_is_named(line: bytes) -> None:
    with pytest.raises(LineError, match="line 4"):
        parse_row(line, 4, RowOptions(json=True))


def test_headers_of_options() -> None:
    assert [parse_header(text) for text in (b"a=1=2", b"b", b"c=")] == [("a", b"1=2"), ("b", None), ("c", b"")]
