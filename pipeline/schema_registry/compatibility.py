"""Judges whether a schema can read data of another one, and names the reasons if not. Pure.

Source: Avro specification 1.12, "Schema Resolution". Where implementations differ, a pair passes only if all agree:

* Names of records, enums and fixeds must match in their last part, or the writer's full name must be among the
  reader's aliases. Of a reader's union the branch of the same full name decides alone, as Java reads it; else
  the first branch that reads everything the writer's type holds.
* A field alias takes a writer's field only if the reader has no field of that name itself. A reader's field that
  matches two writer's fields, or a writer's field that matches two, is refused: implementations disagree about it.

Recursive types: a pair of named types under examination counts as compatible until shown otherwise (the greatest fixed
point). Conclusions from such an assumption are dropped if the assumption falls; failures always hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pipeline.schema_registry.avro import (
    Array,
    AvroSchema,
    AvroType,
    Enum,
    Fixed,
    Map,
    Named,
    Primitive,
    RecordSchema,
    Reference,
    Union,
    short_name,
)

MAX_SENTENCES = 50

PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""Primitives of a reader by the writer's primitive that they can read."""


class CompatibilityLevel(StrEnum):
    """Promise of a new version of a subject towards the versions before it."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """True if all earlier versions count, not only the latest."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def backward(self) -> bool:
        """True if the new schema must read old data."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """True if old schemas must read new data."""
        return self.value.startswith(("FORWARD", "FULL"))


class Mismatch(StrEnum):
    """Kinds of incompatibility, under the names of Avro's own checker."""

    NAME_MISMATCH = "NAME_MISMATCH"
    FIXED_SIZE_MISMATCH = "FIXED_SIZE_MISMATCH"
    MISSING_ENUM_SYMBOLS = "MISSING_ENUM_SYMBOLS"
    READER_FIELD_MISSING_DEFAULT_VALUE = "READER_FIELD_MISSING_DEFAULT_VALUE"
    AMBIGUOUS_ALIAS = "AMBIGUOUS_ALIAS"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    MISSING_UNION_BRANCH = "MISSING_UNION_BRANCH"


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """Reason why a reader cannot read a writer's data. `path` leads to the place, in the reader's names."""

    kind: Mismatch
    path: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        """`KIND at path: message`."""
        path = "".join(part if part.startswith("[") else f".{part}" for part in self.path).removeprefix(".")
        return f"{self.kind} at {path}: {self.message}" if path else f"{self.kind}: {self.message}"


Reasons = tuple[Incompatibility, ...]


def why_unreadable(*, reader: AvroSchema, writer: AvroSchema) -> Reasons:
    """Return all reasons why `reader` cannot read data written with `writer`; none if it can."""
    if reader.canonical == writer.canonical:
        return ()
    reasons = _Resolver(reader.names, writer.names).resolve(reader.root, writer.root)
    if isinstance(reader.root, Fixed | Enum | RecordSchema):
        return _below(short_name(reader.root.name), reasons)
    return reasons


def why_incompatible(
    level: CompatibilityLevel, new: AvroSchema, earlier: Sequence[tuple[int, AvroSchema]]
) -> list[str]:
    """Return why `new` may not follow `earlier` (version, schema; oldest first) at this level, in sentences."""
    sentences: list[str] = []
    for version, old in earlier if level.transitive else earlier[-1:]:
        if level.backward:
            sentences += [
                f"the new schema (reader) cannot read data of version {version} (writer): {reason}"
                for reason in why_unreadable(reader=new, writer=old)
            ]
        if level.forward:
            sentences += [
                f"version {version} (reader) cannot read data of the new schema (writer): {reason}"
                for reason in why_unreadable(reader=old, writer=new)
            ]
    if len(sentences) > MAX_SENTENCES:
        return [*sentences[:MAX_SENTENCES], f"and {len(sentences) - MAX_SENTENCES} more reasons"]
    return sentences


class _Resolver:
    """Comparison of two schemas, which remembers the pairs of named types that it has seen."""

    def __init__(self, reader_names: Mapping[str, Named], writer_names: Mapping[str, Named]) -> None:
        self._reader_names = reader_names
        self._writer_names = writer_names
        self._failed: dict[tuple[str, str], Reasons] = {}
        self._assumed: dict[tuple[str, str], None] = {}

    def resolve(self, reader: AvroType, writer: AvroType) -> Reasons:
        if isinstance(reader, Reference):
            reader = self._reader_names[reader.name]
        if isinstance(writer, Reference):
            writer = self._writer_names[writer.name]
        if isinstance(writer, Union):
            reasons = [self.resolve(reader, branch) for branch in writer.branches]
            return tuple(dict.fromkeys(reason for branch in reasons for reason in branch))
        match reader, writer:
            case Union(), _:
                return self._resolve_branch(reader, writer)
            case Primitive(kind=wanted), Primitive(kind=written):
                if wanted == written or wanted in PROMOTIONS.get(written, frozenset()):
                    return ()
                return _mismatch(reader, writer)
            case Array(), Array():
                return _below("[items]", self.resolve(reader.items, writer.items))
            case Map(), Map():
                return _below("[values]", self.resolve(reader.values, writer.values))
        if isinstance(reader, Fixed | Enum | RecordSchema) and isinstance(writer, Fixed | Enum | RecordSchema):
            return self._resolve_named(reader, writer)
        return _mismatch(reader, writer)

    def _resolve_branch(self, reader: Union, writer: AvroType) -> Reasons:
        """Resolve the writer's type against the branches of the reader's union."""
        branches = [self._reader_names[b.name] if isinstance(b, Reference) else b for b in reader.branches]
        if isinstance(writer, Fixed | Enum | RecordSchema):
            for branch in branches:
                if type(branch) is type(writer) and branch.name == writer.name:
                    return self.resolve(branch, writer)
        nearest: Reasons = ()
        for branch in branches:
            reasons = self.resolve(branch, writer)
            if not reasons:
                return ()
            same_kind = type(branch) is type(writer) and not isinstance(branch, Primitive)
            if same_kind and not any(reason.kind is Mismatch.NAME_MISMATCH and not reason.path for reason in reasons):
                nearest = nearest or reasons
        message = f"no branch of the reader's union {_describe(reader)} reads the writer's {_describe(writer)}"
        return (Incompatibility(Mismatch.MISSING_UNION_BRANCH, (), message), *nearest)

    def _resolve_named(self, reader: Named, writer: Named) -> Reasons:
        if type(reader) is not type(writer):
            return _mismatch(reader, writer)
        pair = (reader.name, writer.name)
        if pair in self._failed:
            return self._failed[pair]
        if pair in self._assumed:
            return ()
        assumed_before = len(self._assumed)
        self._assumed[pair] = None
        reasons = _compare_names(reader, writer)
        match reader, writer:
            case Fixed(), Fixed():
                reasons += _compare_sizes(reader, writer)
            case Enum(), Enum():
                reasons += _compare_symbols(reader, writer)
            case RecordSchema(), RecordSchema() if not reasons:
                reasons += self._compare_fields(reader, writer)
        if reasons:
            for assumption in list(self._assumed)[assumed_before:]:
                del self._assumed[assumption]
            self._failed[pair] = reasons
        return reasons

    def _compare_fields(self, reader: RecordSchema, writer: RecordSchema) -> Reasons:
        reasons: list[Incompatibility] = []
        own_names = {field.name for field in reader.fields}
        written = {field.name: field for field in writer.fields}
        claimed: dict[str, str] = {}
        for field in reader.fields:
            wanted = [field.name, *(alias for alias in dict.fromkeys(field.aliases) if alias not in own_names)]
            sources = [name for name in wanted if name in written]
            if not sources:
                if not field.has_default:
                    message = "the reader's field has no default and the writer has no such field"
                    kind = Mismatch.READER_FIELD_MISSING_DEFAULT_VALUE
                    reasons.append(Incompatibility(kind, (field.name,), message))
                continue
            if len(sources) > 1:
                message = f"by name and aliases it is several of the writer's fields: {', '.join(sources)}"
                reasons.append(Incompatibility(Mismatch.AMBIGUOUS_ALIAS, (field.name,), message))
                continue
            rival = claimed.setdefault(sources[0], field.name)
            if rival != field.name:
                message = f"field '{rival}' has the same alias '{sources[0]}', which the writer has once"
                reasons.append(Incompatibility(Mismatch.AMBIGUOUS_ALIAS, (field.name,), message))
                continue
            reasons += _below(field.name, self.resolve(field.type, written[sources[0]].type))
        return tuple(reasons)


def _compare_names(reader: Named, writer: Named) -> Reasons:
    if short_name(reader.name) == short_name(writer.name) or writer.name in reader.aliases:
        return ()
    message = f"the writer's type is named {writer.name}; give the reader's {reader.name} that alias"
    return (Incompatibility(Mismatch.NAME_MISMATCH, (), message),)


def _compare_sizes(reader: Fixed, writer: Fixed) -> Reasons:
    if reader.size == writer.size:
        return ()
    message = f"the reader has {reader.size} bytes, the writer {writer.size}"
    return (Incompatibility(Mismatch.FIXED_SIZE_MISMATCH, (), message),)


def _compare_symbols(reader: Enum, writer: Enum) -> Reasons:
    missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
    if not missing or reader.default is not None:
        return ()
    message = f"the reader lacks the symbols {', '.join(missing)}, and its enum has no default"
    return (Incompatibility(Mismatch.MISSING_ENUM_SYMBOLS, (), message),)


def _mismatch(reader: AvroType, writer: AvroType) -> Reasons:
    message = f"the reader has {_describe(reader)}, the writer {_describe(writer)}"
    return (Incompatibility(Mismatch.TYPE_MISMATCH, (), message),)


def _below(part: str, reasons: Reasons) -> Reasons:
    """Return the same reasons with paths that begin one level further out."""
    return tuple(replace(reason, path=(part, *reason.path)) for reason in reasons)


def _describe(type_: AvroType) -> str:
    """Describe a type in few words: `long`, `record Event`, `[null, string]`."""
    match type_:
        case Primitive(kind=kind):
            return kind
        case Union(branches=branches):
            return f"[{', '.join(_describe(branch) for branch in branches)}]"
        case Array(items=items):
            return f"array of {_describe(items)}"
        case Map(values=values):
            return f"map of {_describe(values)}"
        case Reference(name=name):
            return name
        case Fixed(name=name):
            return f"fixed {name}"
        case Enum(name=name):
            return f"enum {name}"
        case RecordSchema(name=name):
            return f"record {name}"
