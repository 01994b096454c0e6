"""Avro schemas as checked trees. Pure.

Invariants:

A. A tree is finite. It holds a named type at its definition; every other use is a `Reference`, resolved through
   `AvroSchema.names`. So recursive schemas need no cycles.
B. All names, references and aliases in a tree are full names.

Source: Avro specification 1.12, "Schema Declaration", "Names", "Aliases", "Logical Types".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True)
class LogicalType:
    """A valid logical type: its name, and the scale of a decimal."""

    name: str
    scale: int = 0

    def __str__(self) -> str:
        """The name, and the scale of a decimal."""
        return f"{self.name} of scale {self.scale}" if self.name == "decimal" else self.name


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive type. One whose logical type is unknown, or does not fit, has none, as in Avro."""

    kind: str
    logical: LogicalType | None = None


@dataclass(frozen=True, slots=True)
class Array:
    """A sequence of items of one type."""

    items: "AvroType"


@dataclass(frozen=True, slots=True)
class Map:
    """Values of one type under string keys."""

    values: "AvroType"


@dataclass(frozen=True, slots=True)
class Union:
    """Union of several types."""

    branches: tuple["AvroType", ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """A use of a named type, by its full name."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A fixed number of bytes."""

    name: str
    aliases: tuple[str, ...]
    size: int
    logical: LogicalType | None = None


@dataclass(frozen=True, kw_only=True)
class Enum:
    """Enum of symbols. A reader takes `default` for an unknown symbol (Avro 1.9)."""

    name: str
    aliases: tuple[str, ...]
    symbols: tuple[str, ...]
    default: str | None

    @cached_property
    def known(self) -> frozenset[str]:
        """The symbols, to look one up."""
        return frozenset(self.symbols)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a record."""

    name: str
    aliases: tuple[str, ...]
    type: "AvroType"
    default: str | None
    """Its JSON text in one form, to tell whether two definitions are one; None if there is none."""

    @property
    def has_default(self) -> bool:
        """True if a reader need not find the field."""
        return self.default is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSchema:
    """Named fields in order."""

    name: str
    aliases: tuple[str, ...]
    fields: tuple[Field, ...]


Named = Fixed | Enum | RecordSchema
AvroType = Primitive | Array | Map | Union | Reference | Named


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroSchema:
    """A schema: its text as received, its tree, and its named types with those it refers to.

    `sources` are all texts that it is made of: its own, and those behind its references.
    """

    text: str
    root: AvroType
    names: Mapping[str, Named]
    sources: tuple[str, ...]


def short_name(name: str) -> str:
    """Return the part of a full name behind the namespace."""
    return name.rpartition(".")[2]


def label_of(branch: AvroType) -> str:
    """Return what a union may hold once: a full name, or the kind of an unnamed type."""
    match branch:
        case Primitive(kind=kind):
            return kind
        case Array() | Map() | Union():
            return type(branch).__name__.lower()
        case _:
            return branch.name


def is_same_definition(one: Named, other: Named) -> bool:
    """Return True if two definitions say the same; the named types within count by their names alone."""
    if not isinstance(one, RecordSchema) or not isinstance(other, RecordSchema):
        return one == other
    fields, others = ([replace(field, type=_by_name(field.type)) for field in record.fields] for record in (one, other))
    return (one.name, one.aliases, fields) == (other.name, other.aliases, others)


def _by_name(type_: AvroType) -> AvroType:
    match type_:
        case Array(items=items):
            return Array(_by_name(items))
        case Map(values=values):
            return Map(_by_name(values))
        case Union(branches=branches):
            return Union(tuple(map(_by_name, branches)))
        case Fixed(name=name) | Enum(name=name) | RecordSchema(name=name):
            return Reference(name)
    return type_
