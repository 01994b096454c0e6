"""Refuses encoded data that are expensive to decode, before fastavro decodes them. Pure.

fastavro ends the process when a datum nests some thousands of records, makes 2**60 list items of ten bytes if an item
takes no byte, and billions of nulls of no byte for records in one another, and takes minutes for a decimal of a
megabyte. Schemas that allow none of these, and data too short for
them, are not walked.
"""

from typing import Any, Final

from pipeline.client.registry.avro_schemas import MAX_DEPTH, UsableSchema
from pipeline.client.registry.named_types import RECORD_TYPES

MAX_DECIMAL_BYTES: Final = 1024
"""A decimal of this size has some 2,400 digits."""
MAX_EMPTY_ITEMS: Final = 100_000
"""Items of a datum that take no byte."""
MAX_EMPTY_VALUES_A_BYTE: Final = 16
"""Values of records that take no byte, for each byte of a datum, beyond MAX_EMPTY_ITEMS."""
MANY_EMPTY_VALUES: Final = 100
"""So many in a record make its data worth a walk."""
MAX_VARINT_BYTES: Final = 10
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def require_cheap(schema: UsableSchema, data: memoryview) -> None:
    """Raise ValueError for a datum that is too deep, holds too many empty items or too long decimals, or ends early."""
    is_walked = (
        schema.has_empty_items
        or schema.empty_values > MANY_EMPTY_VALUES
        or (schema.is_recursive and len(data) > MAX_DEPTH)
        or (schema.has_decimals and len(data) > MAX_DECIMAL_BYTES)
    )
    if is_walked:
        _Walk(schema, data).skip(schema.fastavro, 0)


class _Walk:
    def __init__(self, schema: UsableSchema, data: memoryview) -> None:
        self._named = schema.named
        self._data = data
        self._position = 0
        self._empty_items = 0
        self._empty_values = 0
        self._max_empty_values = MAX_EMPTY_ITEMS + MAX_EMPTY_VALUES_A_BYTE * len(data)

    def skip(self, schema: Any, depth: int) -> None:
        """Go to the end of a datum, which is `depth` types deep."""
        if depth > 2 * MAX_DEPTH:
            raise ValueError(f"it nests more than {MAX_DEPTH} types")
        if isinstance(schema, str):
            schema = self._named.get(schema, schema)
        if isinstance(schema, list):
            self.skip(schema[self._index(len(schema))], depth + 1)
            return
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            self.skip(kind, depth)
        elif kind in _SIZES:
            self._advance(_SIZES[kind])
        elif kind in ("int", "long", "enum"):
            self._varint()
        elif kind in ("bytes", "string", "fixed"):
            size = schema["size"] if kind == "fixed" else self._varint()
            if isinstance(schema, dict) and schema.get("logicalType") == "decimal" and size > MAX_DECIMAL_BYTES:
                raise ValueError(f"a decimal of {size} bytes is longer than {MAX_DECIMAL_BYTES}")
            self._advance(size)
        elif kind in RECORD_TYPES:
            for field in schema["fields"]:
                start = self._position
                self.skip(field["type"], depth + 1)
                if self._position == start:
                    self._empty_values += 1
                    if self._empty_values > self._max_empty_values:
                        raise ValueError(f"it holds more than {self._max_empty_values} values that take no byte")
        else:
            self._skip_blocks(schema, depth)

    def _skip_blocks(self, schema: Any, depth: int) -> None:
        is_map = schema["type"] == "map"
        inner = schema["values" if is_map else "items"]
        while count := self._varint():
            if count < 0:
                count = -count
                self._varint()
            for _ in range(count):
                start = self._position
                if is_map:
                    self._advance(self._varint())
                self.skip(inner, depth + 1)
                if self._position == start:
                    self._empty_items += 1
                    if self._empty_items > MAX_EMPTY_ITEMS:
                        raise ValueError(f"it holds more than {MAX_EMPTY_ITEMS} empty items")

    def _index(self, branches: int) -> int:
        index = self._varint()
        if not 0 <= index < branches:
            raise ValueError(f"it has branch {index} of a union of {branches}")
        return index

    def _advance(self, size: int) -> None:
        if not 0 <= size <= len(self._data) - self._position:
            raise ValueError(f"it ends early: {size} bytes are announced, {len(self._data) - self._position} follow")
        self._position += size

    def _varint(self) -> int:
        number = 0
        for place in range(MAX_VARINT_BYTES):
            self._advance(1)
            byte = self._data[self._position - 1]
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise ValueError("it holds a number of more than 64 bits")
