"""Avro schemas ready for fastavro, with what their data need to be checked for. Pure.

Invariants: a schema nests at most MAX_DEPTH types, so that neither fastavro nor the checks leave the stack; each named
type is looked at once, whatever its uses.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import fastavro

from pipeline.client.registry.byte_defaults import with_bytes
from pipeline.client.registry.errors import SerializationError
from pipeline.client.registry.named_types import NAMED_TYPES, PRIMITIVE_TYPES, RECORD_TYPES, with_named_types

MAX_DEPTH: Final = 200
"""Types within one another, in a schema or in a datum of a recursive one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableSchema:
    """A schema as fastavro takes it. `document` is its JSON, with all types that it uses.

    A schema of plain bytes has data without a length (Confluent's wire format). Recursion, items that take no byte,
    records that hold many such values (`empty_values` of the widest one), and decimals make small data expensive.
    """

    document: Any
    fastavro: Any
    name: str | None
    named: Mapping[str, Any]
    is_bytes: bool
    is_recursive: bool
    has_empty_items: bool
    empty_values: int
    has_decimals: bool


def parse_avro(text: str, referenced: Sequence[str] = ()) -> UsableSchema:
    """Parse a schema, with the texts that define types which it uses. Raises SerializationError."""
    try:
        document = _load(text)
        if referenced:
            document = with_named_types(document, [_load(other) for other in referenced])
        while isinstance(document, dict) and isinstance(document["type"], dict | list):
            document = document["type"]
        parsed = fastavro.parse_schema(document)
        shape = _Shape()
        shape.look_at(parsed)
        for record in shape.named.values():
            for field in record.get("fields", ()):
                if "default" in field:
                    field["default"] = with_bytes(field["type"], field["default"], shape.named)
        kind = parsed.get("type") if isinstance(parsed, dict) else parsed
        return UsableSchema(
            document=document,
            fastavro=parsed,
            name=parsed["name"] if isinstance(parsed, dict) and kind in NAMED_TYPES else None,
            named=shape.named,
            is_bytes=kind == "bytes",
            is_recursive=shape.is_recursive,
            has_empty_items=any(shape.is_empty(items) for items in shape.items),
            empty_values=max(map(shape.empty_values, shape.named.values()), default=0),
            has_decimals=shape.has_decimals,
        )
    except SerializationError:
        raise
    except Exception as error:  # fastavro does not document its exceptions
        raise SerializationError(f"not an Avro schema: {type(error).__name__} {error}") from error


def _load(text: str) -> Any:
    """Return parsed JSON with interned strings, so that fastavro finds the fields of most objects by identity."""
    return _interned(json.loads(text, object_pairs_hook=_interned_object))


def _interned_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {sys.intern(key): _interned(value) for key, value in pairs}


def _interned(value: Any) -> Any:
    if isinstance(value, str):
        return sys.intern(value)
    return [_interned(each) for each in value] if isinstance(value, list) else value


class _Shape:
    """Types of one parsed schema."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}
        self.items: list[Any] = []
        self.is_recursive = False
        self.has_decimals = False
        self._heights: dict[str, int] = {}
        self._empty: dict[str, bool] = {}
        self._empty_values: dict[str, int] = {}

    def look_at(self, schema: Any) -> int:
        """Collect the types of a schema, and return how many nest in one another."""
        if isinstance(schema, list):
            return 1 + max(map(self.look_at, schema), default=0)
        if isinstance(schema, str):
            height = self._heights.get(schema, 1 if schema in PRIMITIVE_TYPES else 0)
            self.is_recursive = self.is_recursive or not height
            return height
        height = 1 + max(map(self.look_at, self._parts(schema)), default=0)
        if height > MAX_DEPTH:
            raise SerializationError(f"not a usable Avro schema: it nests more than {MAX_DEPTH} types")
        if "name" in schema:
            self._heights[schema["name"]] = height
        return height

    def _parts(self, schema: Mapping[str, Any]) -> list[Any]:
        kind = schema["type"]
        self.has_decimals = self.has_decimals or schema.get("logicalType") == "decimal"
        if isinstance(kind, dict | list):
            return [kind]
        if kind == "array":
            self.items.append(schema["items"])
            return [schema["items"]]
        if kind == "map":
            return [schema["values"]]
        if kind in NAMED_TYPES:
            self.named[schema["name"]] = schema
        return [field["type"] for field in schema["fields"]] if kind in RECORD_TYPES else []

    def empty_values(self, schema: Any) -> int:
        """Return how many values that take no byte a datum of the schema holds at least."""
        if isinstance(schema, list):
            return 0
        if isinstance(schema, str):
            return int(schema == "null") if schema in PRIMITIVE_TYPES else self.empty_values(self.named[schema])
        if isinstance(schema["type"], dict | list):
            return self.empty_values(schema["type"])
        if schema["type"] not in RECORD_TYPES:
            return int(self._is_empty_type(schema))
        name = schema["name"]
        if name not in self._empty_values:
            self._empty_values[name] = 0  # within itself: a datum of such a record never ends
            self._empty_values[name] = sum(self.empty_values(field["type"]) for field in schema["fields"])
        return self._empty_values[name]

    def is_empty(self, schema: Any) -> bool:
        """True if a datum of the schema takes no byte."""
        if isinstance(schema, list):
            return False
        if isinstance(schema, str):
            return schema == "null" if schema in PRIMITIVE_TYPES else self._is_empty_type(self.named[schema])
        if isinstance(schema["type"], dict | list):
            return self.is_empty(schema["type"])
        return self._is_empty_type(schema)

    def _is_empty_type(self, schema: Mapping[str, Any]) -> bool:
        kind = schema["type"]
        if kind == "fixed":
            return bool(schema["size"] == 0)
        if kind not in RECORD_TYPES:
            return bool(kind == "null")
        name = schema["name"]
        if name not in self._empty:
            self._empty[name] = False  # a record within itself takes a byte for the union, array or map between
            self._empty[name] = all(self.is_empty(field["type"]) for field in schema["fields"])
        return self._empty[name]
