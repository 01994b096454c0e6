"""Turns numbers and octets that a program has stored into values of a reader's type. No I/O.

Values that the type cannot hold are marked, by a flag for each value, and reported with a reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.hadoop.avro.avro_kernels import Flags
from pipeline.hadoop.avro.avro_schema import SchemaNode
from pipeline.hadoop.avro.column_kernels import find_bad_utf8, read_decimals
from pipeline.hadoop.avro.column_types import MAX_DECIMAL_DIGITS
from pipeline.records.kernels import Bytes, Int64s

_MASK: Final = 2**64 - 1
_NANOS: Final[Mapping[str, int]] = {
    "date": 86_400_000_000_000,
    "time-millis": 1_000_000,
    "time-micros": 1_000,
    "timestamp-millis": 1_000_000,
    "timestamp-micros": 1_000,
    "timestamp-nanos": 1,
    "local-timestamp-millis": 1_000_000,
    "local-timestamp-micros": 1_000,
    "local-timestamp-nanos": 1,
}


@dataclass(frozen=True, slots=True, eq=False)
class ValueFault:
    """Values that cannot be converted, marked among all values of a column; and the reason."""

    bad: Flags
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class ByteStrings:
    """Byte strings one after another in `octets`: string i ends at ends[i + 1], and ends[0] is 0."""

    ends: Int64s
    octets: Bytes

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> bytes:
        return self.octets[self.ends[index] : self.ends[index + 1]].tobytes()


NumberConverter = Callable[[Int64s], tuple[NDArray[Any], ValueFault | None]]
"""Takes numbers as stored; returns values of the column's storage type."""


def stored_numbers(numbers: Int64s, writer: str) -> NDArray[Any]:
    """Return numbers as values of the writer's primitive type."""
    match writer:
        case "float":
            return numbers.astype(np.int32).view(np.float32)
        case "double":
            return numbers.view(np.float64)
        case _:
            return numbers


def time_factors(writer: SchemaNode, reader: SchemaNode) -> tuple[int, int] | None:
    """Return factor and divisor from the writer's unit of time to the reader's; (1, 1) unless both are times.

    None if one is a time of day and the other an instant, which have nothing in common.
    """
    if writer.logical not in _NANOS or reader.logical not in _NANOS:
        return 1, 1
    if writer.logical.startswith("time-") != reader.logical.startswith("time-"):
        return None
    ours, theirs = _NANOS[writer.logical], _NANOS[reader.logical]
    return max(ours // theirs, 1), max(theirs // ours, 1)


def scaled(numbers: Int64s, factor: int, divisor: int) -> tuple[Int64s, ValueFault | None]:
    """Return numbers in another unit, rounded down."""
    if divisor > 1:
        return numbers // divisor, None
    if factor == 1:
        return numbers, None
    limit = (2**63 - 1) // factor
    bad = (numbers > limit) | (numbers < -limit)
    fault = ValueFault(bad, "a time is out of range of the reader's unit") if bad.any() else None
    return np.where(bad, 0, numbers) * factor, fault


def late_fault(milliseconds: Int64s) -> ValueFault | None:
    """Return times in ms that are none in microseconds: Spark's, which reads no file that has one."""
    limit = (2**63 - 1) // 1000
    bad = (milliseconds > limit) | (milliseconds < -limit)
    return ValueFault(bad, "a time in ms is out of range of Spark's microseconds") if bad.any() else None


def utf8_fault(strings: ByteStrings) -> ValueFault | None:
    """Return the strings that are not UTF-8."""
    whole = pa.StringArray.from_buffers(
        len(strings), pa.py_buffer(strings.ends.astype(np.int32)), pa.py_buffer(strings.octets)
    )
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        bad = np.zeros(len(strings), dtype=np.bool_)
        if find_bad_utf8(strings.octets, strings.ends[:-1], strings.ends[1:], bad):
            return ValueFault(bad, "a string is not UTF-8")
    return None


def decimals(strings: ByteStrings, writer: SchemaNode, reader: SchemaNode) -> tuple[pa.Array, ValueFault | None]:
    """Return decimals of the reader's precision and scale: decimal128, or text for more than 38 digits.

    Numbers of another scale are marked if they would be rounded, and numbers with more digits than the precision.
    """
    scale = writer.scale if writer.logical == "decimal" else reader.scale
    bad = np.zeros(len(strings), dtype=np.bool_)
    reason = f"a decimal does not fit precision {reader.precision} and scale {reader.scale}"
    if reader.precision > MAX_DECIMAL_DIGITS:
        texts = [_text(_rescaled(strings[row], scale, reader), reader.scale) for row in range(len(strings))]
        bad = np.array([text is None for text in texts], dtype=np.bool_)
        return pa.array(texts, pa.string()), ValueFault(bad, reason) if bad.any() else None
    values = np.zeros((len(strings), 2), dtype=np.uint64)
    if scale == reader.scale:
        limit = 10**reader.precision - 1
        read_decimals(
            strings.octets,
            strings.ends[:-1],
            strings.ends[1:],
            np.uint64(limit >> 64),
            np.uint64(limit & _MASK),
            values,
            bad,
        )
    else:
        for row in range(len(strings)):
            number = _rescaled(strings[row], scale, reader)
            bad[row] = number is None
            values[row] = ((number or 0) & _MASK, (number or 0) >> 64 & _MASK)
    if bad.any():
        values[bad] = 0
    data_type = pa.decimal128(reader.precision, reader.scale)
    array = pa.Array.from_buffers(data_type, len(strings), [None, pa.py_buffer(values)])
    return array, ValueFault(bad, reason) if bad.any() else None


def _rescaled(data: bytes, scale: int, reader: SchemaNode) -> int | None:
    """Return the unscaled number in the reader's scale, or None if it does not fit."""
    number = int.from_bytes(data, "big", signed=True)
    # 10 has less than 3.33 bits, so numbers of any size are compared in short time.
    if number.bit_length() > 4 * (reader.precision + scale) + 4:
        return None
    if reader.scale >= scale:
        number *= 10 ** (reader.scale - scale)
    else:
        number, rest = divmod(number, 10 ** (scale - reader.scale))
        if rest:
            return None
    return number if abs(number) < 10**reader.precision else None


def _text(number: int | None, scale: int) -> str | None:
    if number is None:
        return None
    digits = str(abs(number)).zfill(scale + 1)
    point = len(digits) - scale
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[:point]}.{digits[point:]}" if scale else f"{sign}{digits}"
