"""Turns lines into rows: keys, values and times, as the options say. Pure."""

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.cli.produce.lines import LineError
from pipeline.records.builder import MAX_TIMESTAMP_MS, Header

TIME_SEPARATOR = b"\t"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """Options of parsing. `fixed_key` is the key of lines without one; `null_values` stand for no value."""

    key_separator: bytes | None = None
    fixed_key: bytes | None = None
    null_values: frozenset[bytes] = frozenset()
    timestamps: bool = False
    json: bool = False

    @property
    def is_plain(self) -> bool:
        """True if a line holds its key and its value alone, as they are."""
        return not self.timestamps and not self.json


@dataclass(slots=True)
class Row:
    """A record to publish. In `key` and `value` of JSON lines stand texts and objects for a serialiser."""

    key: Any
    value: Any
    headers: tuple[Header, ...]
    timestamp_ms: int | None = None


def parse_header(text: bytes) -> Header:
    """Return the header of `name=value`; without `=` it has no value. Raises ValueError if the name is not text."""
    name, separator, value = text.partition(b"=")
    return name.decode(), value if separator else None


def split_lines(
    lines: list[bytes], number: int, options: RowOptions
) -> tuple[list[bytes | None] | bytes | None, list[bytes | None]]:
    """Return keys (one for all lines, if that is so) and values of plain lines, the first of which has this number.

    Raises LineError for a line without the separator of keys.
    """
    keys: list[bytes | None] | bytes | None = options.fixed_key
    values: list[bytes | None] = list(lines)
    if options.key_separator is not None:
        parts = [line.split(options.key_separator, 1) for line in lines]
        if min(map(len, parts)) < 2:
            fault = next(i for i, part in enumerate(parts) if len(part) < 2)
            raise LineError(number + fault, _without(options.key_separator))
        keys = [part[0] for part in parts]
        values = [part[1] for part in parts]
    if options.null_values:
        values = [None if value in options.null_values else value for value in values]
    return keys, values


def parse_row(line: bytes, number: int, options: RowOptions) -> Row:
    """Return the row of a line. Raises LineError."""
    if options.json:
        return _json_row(line, number, options)
    timestamp_ms = None
    if options.timestamps:
        separator = options.key_separator or TIME_SEPARATOR
        time, found, line = line.partition(separator)
        if not found:
            raise LineError(number, _without(separator))
        timestamp_ms = _timestamp(time, number)
    keys, (value,) = split_lines([line], number, options)
    return Row(keys[0] if isinstance(keys, list) else keys, value, (), timestamp_ms)


def _without(separator: bytes) -> str:
    shown = separator.decode("utf-8", "backslashreplace")
    return f" does not contain the separator {shown!r}"


def _timestamp(text: bytes, number: int) -> int:
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > 19 or int(digits) > MAX_TIMESTAMP_MS:
        raise LineError(number, f": {text[:40].decode(errors='replace')!r} is no time in ms since 1970")
    return int(text)


def _json_row(line: bytes, number: int, options: RowOptions) -> Row:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(number, f" is not JSON: {error}") from error
    if not isinstance(document, dict) or "value" not in document:
        raise LineError(number, ' is no JSON object with a "value"')
    timestamp_ms = document.get("timestamp") if options.timestamps else None
    if options.timestamps and (
        not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool) or abs(timestamp_ms) > MAX_TIMESTAMP_MS
    ):
        raise LineError(number, ': its "timestamp" is no time in ms since 1970')
    key = document.get("key")
    return Row(
        options.fixed_key if key is None else _unpacked(key, number),
        _unpacked(document["value"], number),
        tuple(_json_headers(document.get("headers"), number)),
        timestamp_ms,
    )


def _json_headers(headers: Any, number: int) -> Iterable[Header]:
    if headers is None:
        return
    if not isinstance(headers, dict):
        raise LineError(number, ': its "headers" are no object')
    for name, contents in headers.items():
        for content in contents if isinstance(contents, list) else [contents]:
            try:
                yield name, data_of(_unpacked(content, number))
                name.encode()
            except UnicodeEncodeError as error:
                raise LineError(number, f": header {name!r}: {error.reason}") from error


def _unpacked(value: Any, number: int) -> Any:
    """Return the bytes of `{"base64": ...}`, other values as they are."""
    if not isinstance(value, dict) or value.keys() != {"base64"} or not isinstance(value["base64"], str):
        return value
    try:
        return base64.b64decode(value["base64"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise LineError(number, f": not base64: {error}") from error


def data_of(value: Any) -> bytes | None:
    """Return the bytes of a key or value of a JSON line: texts as UTF-8, other values but null as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value).encode()
