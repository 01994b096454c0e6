"""Checks whether defaults fit their types. Pure.

A union takes a default of any branch (Avro 1.12), so that a value may have to be tried against many types. Each value
is tried once against each type.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from pipeline.schema_registry.avro.types import (
    Array,
    AvroType,
    Enum,
    Fixed,
    Json,
    Map,
    Named,
    Primitive,
    RecordSchema,
    Reference,
    Union,
)
from pipeline.schema_registry.avro.work import Work

MAX_DEPTH: Final = 100
MAX_SHOWN: Final = 60
_SHOWN_SYMBOLS: Final = 10
_INT_BOUNDS: Final = {"int": 1 << 31, "long": 1 << 63}
_DOUBLE_BOUND: Final = 1 << 1024
"""A whole number may be written in as many digits."""


class DefaultChecks:
    """The defaults of one schema, which takes `work` for them."""

    def __init__(self, names: Mapping[str, Named], work: Work) -> None:
        self._names = names
        self._work = work
        self._known: dict[tuple[int, int], str | None] = {}

    def fault(self, default: Json, type_: AvroType, depth: int = 0) -> str | None:
        """Return why a default does not fit a type, or None. Raises TooMuchWorkError."""
        if isinstance(type_, Reference):
            type_ = self._names[type_.name]
        if isinstance(type_, Primitive | Fixed | Enum):
            self._work.take("checking the defaults")
            return _fault_of_plain(default, type_)
        if depth > MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} values"
        # Values and types live as long as the schema, so that their identities stay theirs.
        key = (id(default), id(type_))
        if key not in self._known:
            self._work.take("checking the defaults")
            self._known[key] = self._fault_of_complex(default, type_, depth)
        return self._known[key]

    def _fault_of_complex(self, default: Json, type_: Array | Map | Union | RecordSchema, depth: int) -> str | None:
        match type_:
            case Union(branches=branches):
                if any(self.fault(default, branch, depth + 1) is None for branch in branches):
                    return None
                return f"{_shown(default)} fits no branch of the union"
            case Array(items=items):
                if not isinstance(default, list):
                    return f"{_shown(default)} is no array"
                return self._first_fault(((item, items) for item in default), depth)
            case Map(values=values):
                if not isinstance(default, dict):
                    return f"{_shown(default)} is no object"
                return self._first_fault(((value, values) for value in default.values()), depth)
            case RecordSchema(fields=fields):
                if not isinstance(default, dict):
                    return f"{_shown(default)} is no object"
                self._work.take("checking the defaults", len(fields))
                for field in fields:
                    if field.name not in default and not field.has_default:
                        return f"{_shown(default)} lacks field '{field.name[:MAX_SHOWN]}'"
                present = ((default[field.name], field.type) for field in fields if field.name in default)
                return self._first_fault(present, depth)

    def _first_fault(self, parts: Iterable[tuple[Json, AvroType]], depth: int) -> str | None:
        faults = (self.fault(value, type_, depth + 1) for value, type_ in parts)
        return next((fault for fault in faults if fault is not None), None)


def _fault_of_plain(default: Json, type_: Primitive | Fixed | Enum) -> str | None:
    match type_:
        case Primitive(kind=kind):
            return None if _fits_primitive(default, kind) else f"{_shown(default)} is not of type {kind}"
        case Fixed(size=size):
            fits = isinstance(default, str) and len(default) == size and _is_bytes(default)
            return None if fits else f"{_shown(default)} is not a string of {size} characters up to \\u00ff"
        case Enum(symbols=symbols):
            if isinstance(default, str) and default in type_.known:
                return None
            more = ", ..." if len(symbols) > _SHOWN_SYMBOLS else ""
            return f"{_shown(default)} is not one of the symbols {', '.join(symbols[:_SHOWN_SYMBOLS])}{more}"


def _fits_primitive(value: Json, kind: str) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bound = _INT_BOUNDS[kind]
            return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound
        case "float" | "double":
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                return False
            return -_DOUBLE_BOUND < value < _DOUBLE_BOUND
        case "bytes":
            return isinstance(value, str) and _is_bytes(value)
        case _:
            return isinstance(value, str)


def _is_bytes(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Json) -> str:
    """Describe a value; of a long one only the beginning is written, as it may be tried against many types."""
    match value:
        case list():
            return f"an array of {len(value)}"
        case dict():
            return f"an object with {len(value)} attributes"
        case str():
            return json.dumps(value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}...")
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
