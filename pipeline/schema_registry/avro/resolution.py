"""Judges whether a schema can read data of another one, and names the reasons if not. Pure.

Source: Avro specification 1.12, "Schema Resolution". Where implementations differ, a pair passes only if all agree, but
for what docs/registry/compatibility.md lists:

* Names of records, enums and fixeds must match in their last part, or the writer's full name must be among the
  reader's aliases. A branch of a reader's union must match in its full name, as Java reads it; of records the last
  part is enough, and of unions that are the same but for namespaces the place.
* Java's reader replaces names by aliases before it compares (`_NamesToReader`). An alias that is another name, too, or
  that several fields have, is refused: implementations disagree about it. Aliases of fields count only in a record of
  the same full name.
* Two logical types that give one stored value two meanings are refused (milliseconds read as microseconds, decimals of
  another scale), though readers take the bytes. A logical type that one side lacks changes nothing.

Recursive types: a pair of named types under examination counts as compatible until shown otherwise (the greatest fixed
point). Conclusions from such an assumption are dropped if the assumption falls; failures always hold.

Work: a branch of a union is looked up by its name. Reasons are counted, and kept up to MAX_REASONS.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pipeline.schema_registry.avro.parsing import shown
from pipeline.schema_registry.avro.types import (
    PRIMITIVES,
    Array,
    AvroSchema,
    AvroType,
    Enum,
    Fixed,
    LogicalType,
    Map,
    Named,
    Primitive,
    RecordSchema,
    Reference,
    Union,
    label_of,
    short_name,
)
from pipeline.schema_registry.avro.work import TooMuchWorkError, Work

MAX_REASONS: Final = 100
MAX_DEPTH: Final = 120
"""Types within types, also by their names: as deep as any reader's own recursion goes."""
_UNNAMED: Final = PRIMITIVES | {"array", "map", "union"}
_SHOWN_PARTS: Final = 10
_SHOWN_DEPTH: Final = 3

PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""Primitives of a reader by the writer's primitive that they can read."""


class Mismatch(StrEnum):
    """Kinds of incompatibility, under the names of Avro's own checker, but for those that it does not look for."""

    NAME_MISMATCH = "NAME_MISMATCH"
    FIXED_SIZE_MISMATCH = "FIXED_SIZE_MISMATCH"
    MISSING_ENUM_SYMBOLS = "MISSING_ENUM_SYMBOLS"
    READER_FIELD_MISSING_DEFAULT_VALUE = "READER_FIELD_MISSING_DEFAULT_VALUE"
    AMBIGUOUS_ALIAS = "AMBIGUOUS_ALIAS"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    MISSING_UNION_BRANCH = "MISSING_UNION_BRANCH"
    LOGICAL_TYPE_MISMATCH = "LOGICAL_TYPE_MISMATCH"


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """Reason why a reader cannot read a writer's data. `path` leads to the place, in the reader's names."""

    kind: Mismatch
    path: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        """`KIND at path: message`."""
        path = "".join(part if part.startswith("[") else f".{shown(part)}" for part in self.path).removeprefix(".")
        return f"{self.kind} at {path}: {self.message}" if path else f"{self.kind}: {self.message}"


Reasons = tuple[Incompatibility, ...]


def why_unreadable(*, reader: AvroSchema, writer: AvroSchema, work: Work | None = None) -> Reasons:
    """Return the first MAX_REASONS reasons why `reader` cannot read data written with `writer`; none if it can.

    Raises TooMuchWorkError for schemas that cannot be compared within `work`, or nest deeper than MAX_DEPTH types.
    """
    if reader.sources == writer.sources:
        return ()
    resolver = _Resolver(reader.names, writer.names, work or Work())
    reasons = resolver.resolve(reader.root, writer.root) or resolver.crossed_aliases()
    if isinstance(reader.root, Fixed | Enum | RecordSchema):
        return _below(short_name(reader.root.name), reasons)
    return reasons


class _Resolver:
    """SchemaComparison of two schemas, which remembers the pairs of named types that it has seen."""

    def __init__(self, reader_names: Mapping[str, Named], writer_names: Mapping[str, Named], work: Work) -> None:
        self._reader_names = reader_names
        self._writer_names = writer_names
        self._work = work
        self._depth = 0
        self._failed: dict[tuple[str, str], Reasons] = {}
        self._assumed: dict[tuple[str, str], None] = {}
        self._branches: dict[int, _Branches] = {}
        work.take("comparing the schemas", len(reader_names) + len(writer_names))
        self._names = _NamesToReader(reader_names)
        self._shapes = _Shapes(reader_names, writer_names, self._names, work)

    def resolve(self, reader: AvroType, writer: AvroType) -> Reasons:
        if reader is writer and not isinstance(reader, Reference):
            return ()  # the parser shares equal types without names
        self._work.take("comparing the schemas")
        _check_depth(self._depth)
        self._depth += 1
        try:
            return self._resolve(reader, writer)
        finally:
            self._depth -= 1

    def _resolve(self, reader: AvroType, writer: AvroType) -> Reasons:
        if isinstance(reader, Reference):
            reader = self._reader_names[reader.name]
        if isinstance(writer, Reference):
            writer = self._writer_names[writer.name]
        if isinstance(writer, Union):
            same = isinstance(reader, Union) and self._shapes.are_equal(reader, writer, self._depth)
            readers = reader.branches if isinstance(reader, Union) and same else (reader,) * len(writer.branches)
            pairs = zip(readers, writer.branches, strict=True)
            return self._same_names(writer) or _first(reason for pair in pairs for reason in self.resolve(*pair))
        match reader, writer:
            case Union(), _:
                return self._resolve_branch(reader, writer)
            case Primitive(), Primitive():
                return _compare_primitives(reader, writer)
            case Array(), Array():
                return _below("[items]", self.resolve(reader.items, writer.items))
            case Map(), Map():
                return _below("[values]", self.resolve(reader.values, writer.values))
        if isinstance(reader, Fixed | Enum | RecordSchema) and isinstance(writer, Fixed | Enum | RecordSchema):
            return self._resolve_named(reader, writer)
        return _mismatch(reader, writer)

    def _resolve_branch(self, reader: Union, writer: AvroType) -> Reasons:
        """Resolve the writer's type against the branches of the reader's union that may read it."""
        named = isinstance(writer, Fixed | Enum | RecordSchema)
        name = self._names.of_type(label_of(writer))
        candidates = self._branches_of(reader).candidates(writer, name)
        if named and candidates and label_of(candidates[0]) == name:
            return self.resolve(candidates[0], writer)
        reasons = _first(reason for branch in candidates for reason in self.resolve(branch, writer))
        if candidates and not reasons:
            return ()
        message = f"no branch of the reader's union {in_words(reader)} reads the writer's {in_words(writer)}"
        return _first((Incompatibility(Mismatch.MISSING_UNION_BRANCH, (), message), *reasons))

    def _same_names(self, writer: Union) -> Reasons:
        """Return a reason if the reader's aliases give two branches one name."""
        self._work.take("comparing the schemas", len(writer.branches))
        seen: dict[str, str] = {}
        for branch in writer.branches:
            label = label_of(branch)
            name = self._names.of_type(label)
            other = seen.setdefault(name, label)
            if other != label:
                message = f"by its aliases the reader's {shown(name)} is several branches of the writer's union"
                message = f"{message}: {_listed([other, label])}"
                return (Incompatibility(Mismatch.AMBIGUOUS_ALIAS, (), message),)
        return ()

    def _branches_of(self, union: Union) -> "_Branches":
        if id(union) not in self._branches:
            self._work.take("comparing the schemas", len(union.branches))
            self._branches[id(union)] = _Branches(union, self._reader_names)
        return self._branches[id(union)]

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
        self._work.take("comparing the schemas", len(reader.aliases))
        reasons = self._compare_names(reader, writer)
        match reader, writer:
            case Fixed(), Fixed():
                reasons += _compare_fixed(reader, writer)
            case Enum(), Enum():
                self._work.take("comparing the schemas", len(writer.symbols))
                reasons += _compare_symbols(reader, writer)
            case RecordSchema(), RecordSchema() if not reasons:
                reasons += self._compare_fields(reader, writer)
        if reasons:
            while len(self._assumed) > assumed_before:
                self._assumed.popitem()
            self._failed[pair] = reasons
        return reasons

    def _compare_names(self, reader: Named, writer: Named) -> Reasons:
        name = self._names.of_type(writer.name)
        if short_name(name) != short_name(writer.name) and short_name(name) != short_name(reader.name):
            message = f"the writer's type {shown(writer.name)} is an alias of another type of the reader, {shown(name)}"
            return (Incompatibility(Mismatch.AMBIGUOUS_ALIAS, (), message),)
        if short_name(reader.name) == short_name(writer.name) or writer.name in reader.aliases:
            return ()
        message = f"the writer's type is named {shown(writer.name)}; give the reader's {shown(reader.name)} that alias"
        return (Incompatibility(Mismatch.NAME_MISMATCH, (), message),)

    def _compare_fields(self, reader: RecordSchema, writer: RecordSchema) -> Reasons:
        self._work.take("comparing the schemas", len(reader.fields) + len(writer.fields))
        return _first(self._reasons_of_fields(reader, writer))

    def _reasons_of_fields(self, reader: RecordSchema, writer: RecordSchema) -> Iterable[Incompatibility]:
        written = {field.name: field for field in writer.fields}
        renamed: dict[str, list[str]] = {}
        for name in written:
            renamed.setdefault(self._names.of_field(writer.name, name), []).append(name)
        for field in reader.fields:
            self._work.take("comparing the schemas", len(field.aliases))
            sources = [name for name in dict.fromkeys((field.name, *field.aliases)) if name in written]
            others = renamed.get(field.name, [])
            if len(sources) > 1 or sources != others:
                yield Incompatibility(Mismatch.AMBIGUOUS_ALIAS, (field.name,), _why_ambiguous(sources, others))
            elif sources:
                yield from _below(field.name, self.resolve(field.type, written[sources[0]].type))
            elif not field.has_default:
                message = f"the reader's field has no default (its type is {in_words(field.type)}),"
                message = f"{message} and the writer's {shown(writer.name)} has no such field"
                yield Incompatibility(Mismatch.READER_FIELD_MISSING_DEFAULT_VALUE, (field.name,), message)

    def crossed_aliases(self) -> Reasons:
        """Return a reason if the reader's aliases give two fields of a writer's record one name.

        Java's reader then reads nothing, even where it skips the record.
        """
        for writer in self._writer_names.values():
            if isinstance(writer, RecordSchema) and self._names.renames_fields_of(writer.name):
                self._work.take("comparing the schemas", len(writer.fields))
                seen: dict[str, str] = {}
                for field in writer.fields:
                    name = self._names.of_field(writer.name, field.name)
                    other = seen.setdefault(name, field.name)
                    if other != field.name:
                        message = _why_ambiguous([other, field.name], [])
                        return (Incompatibility(Mismatch.AMBIGUOUS_ALIAS, (writer.name, name), message),)
        return ()


class _NamesToReader:
    """Names of the writer's types and fields as Java's reader sees them: it replaces aliases twice, before it compares.

    Aliases of fields count in the record of the same full name alone.
    """

    def __init__(self, names: Mapping[str, Named]) -> None:
        self._types: dict[str, str] = {}
        self._fields: dict[str, dict[str, str]] = {}
        for type_ in names.values():
            self._types.update(dict.fromkeys(type_.aliases, type_.name))
            if isinstance(type_, RecordSchema):
                aliases = {alias: field.name for field in type_.fields for alias in field.aliases}
                if aliases:
                    self._fields[type_.name] = aliases

    def of_type(self, name: str) -> str:
        """Return the name under which the reader looks for a type of the writer."""
        name = self._types.get(name, name)
        return self._types.get(name, name)

    def renames_fields_of(self, record: str) -> bool:
        """Return True if the reader has aliases for fields of a record of the writer."""
        return self.of_type(record) in self._fields

    def of_field(self, record: str, name: str) -> str:
        """Return the name under which the reader looks for a field of a record of the writer."""
        aliases = self._fields.get(self.of_type(record), {})
        name = aliases.get(name, name)
        return aliases.get(name, name)


class _Shapes:
    """Tells whether two unions are the same but for namespaces, defaults and logical types."""

    def __init__(
        self, reader_names: Mapping[str, Named], writer_names: Mapping[str, Named], names: _NamesToReader, work: Work
    ) -> None:
        self._reader_names = reader_names
        self._writer_names = writer_names
        self._names = names
        self._work = work
        self._known: dict[tuple[str, str], bool] = {}

    def are_equal(self, reader: Union, writer: Union, depth: int) -> bool:
        """Return True if the branches of the two, which lie within `depth` types, may be compared in order."""
        equal = self._all_equal(reader.branches, writer.branches, depth)
        if not equal:  # what was found equal may have been so by an assumption that fell
            self._known = {pair: False for pair, known in self._known.items() if not known}
        return equal

    def _all_equal(self, readers: Sequence[AvroType], writers: Sequence[AvroType], depth: int) -> bool:
        if len(readers) != len(writers):
            return False
        self._work.take("comparing the schemas", len(readers))
        labels = (
            (label_of(one), label_of(self._to_reader(other))) for one, other in zip(readers, writers, strict=True)
        )
        if any(short_name(one) != short_name(other) for one, other in labels):
            return False
        return all(self._equal(one, other, depth + 1) for one, other in zip(readers, writers, strict=True))

    def _to_reader(self, type_: AvroType) -> AvroType:
        """Return a writer's named type as a reference by the name that it has for the reader."""
        return type_ if label_of(type_) in _UNNAMED else Reference(self._names.of_type(label_of(type_)))

    def _equal(self, reader: AvroType, writer: AvroType, depth: int) -> bool:
        self._work.take("comparing the schemas")
        _check_depth(depth)
        if isinstance(reader, Reference):
            reader = self._reader_names[reader.name]
        if isinstance(writer, Reference):
            writer = self._writer_names[writer.name]
        match reader, writer:
            case Primitive(), Primitive():
                return reader.kind == writer.kind
            case Array(), Array():
                return self._equal(reader.items, writer.items, depth + 1)
            case Map(), Map():
                return self._equal(reader.values, writer.values, depth + 1)
            case Union(), Union():
                return self._all_equal(reader.branches, writer.branches, depth)
            case Fixed(), Fixed():
                return reader.size == writer.size
            case Enum(), Enum():
                self._work.take("comparing the schemas", len(reader.symbols))
                return reader.symbols == writer.symbols
            case RecordSchema(), RecordSchema():
                pair = (reader.name, writer.name)
                if pair not in self._known:
                    self._known[pair] = True  # until shown otherwise
                    self._known[pair] = self._records_equal(reader, writer, depth)
                return self._known[pair]
        return False

    def _records_equal(self, reader: RecordSchema, writer: RecordSchema, depth: int) -> bool:
        names = [self._names.of_field(writer.name, field.name) for field in writer.fields]
        return names == [field.name for field in reader.fields] and self._all_equal(
            [field.type for field in reader.fields], [field.type for field in writer.fields], depth
        )


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise TooMuchWorkError(f"comparing types that nest deeper than {MAX_DEPTH}")


def _why_ambiguous(sources: Sequence[str], others: Sequence[str]) -> str:
    both = list(dict.fromkeys((*sources, *others)))
    if len(both) > 1:
        return f"by name and aliases it is several of the writer's fields: {_listed(both)}"
    if sources:
        source = shown(sources[0])
        return (
            f"readers disagree whether it is the writer's field '{source}': its alias counts only in a record of the"
            " same full name, and if the alias is no other field's name or alias"
        )
    return f"readers disagree whether it is the writer's field '{shown(others[0])}': aliases of fields cross"


class _Branches:
    """The branches of a reader's union by what they may read. Others read nothing of a writer's type."""

    def __init__(self, union: Union, names: Mapping[str, Named]) -> None:
        self._by_label: dict[str, AvroType] = {}
        self._records: dict[str, list[RecordSchema]] = {}
        """By the last part of their names."""
        for branch in union.branches:
            type_ = names[branch.name] if isinstance(branch, Reference) else branch
            self._by_label[label_of(type_)] = type_
            if isinstance(type_, RecordSchema):
                self._records.setdefault(short_name(type_.name), []).append(type_)
        self._primitives = [kind for kind in self._by_label if kind in PRIMITIVES]

    def candidates(self, writer: AvroType, name: str) -> Sequence[AvroType]:
        """Return branches that must all read the writer's type: the one of its kind and `name`, if there is one.

        Otherwise readers take a record for one of the same short name; they disagree for which one of several.
        """
        same = self._by_label.get(name)
        if isinstance(same, type(writer)):
            return [same]
        if isinstance(writer, Primitive):
            promotions = PROMOTIONS.get(writer.kind, frozenset())
            return [self._by_label[kind] for kind in self._primitives if kind in promotions][:1]
        return self._records.get(short_name(name), []) if isinstance(writer, RecordSchema) else []


def _compare_primitives(reader: Primitive, writer: Primitive) -> Reasons:
    if reader.kind != writer.kind and reader.kind not in PROMOTIONS.get(writer.kind, frozenset()):
        return _mismatch(reader, writer)
    return _compare_logical(reader.logical, writer.logical)


def _compare_logical(reader: LogicalType | None, writer: LogicalType | None) -> Reasons:
    if reader is None or writer is None or reader == writer:
        return ()
    message = f"the reader takes the stored values for {reader}, the writer means {writer}"
    return (Incompatibility(Mismatch.LOGICAL_TYPE_MISMATCH, (), message),)


def _compare_fixed(reader: Fixed, writer: Fixed) -> Reasons:
    if reader.size == writer.size:
        return _compare_logical(reader.logical, writer.logical)
    message = f"the reader's {shown(reader.name)} has {reader.size} bytes, the writer's {writer.size}"
    return (Incompatibility(Mismatch.FIXED_SIZE_MISMATCH, (), message),)


def _compare_symbols(reader: Enum, writer: Enum) -> Reasons:
    if reader.default is not None:
        return ()
    missing = [symbol for symbol in writer.symbols if symbol not in reader.known]
    if not missing:
        return ()
    message = f"the reader's {shown(reader.name)} lacks the writer's symbols {_listed(missing)}, and has no default"
    return (Incompatibility(Mismatch.MISSING_ENUM_SYMBOLS, (), message),)


def _mismatch(reader: AvroType, writer: AvroType) -> Reasons:
    message = f"the reader has {in_words(reader)}, the writer {in_words(writer)}"
    return (Incompatibility(Mismatch.TYPE_MISMATCH, (), message),)


def _first(reasons: Iterable[Incompatibility]) -> Reasons:
    """Return MAX_REASONS different ones, and look for no more."""
    found: dict[Incompatibility, None] = {}
    for reason in reasons:
        found[reason] = None
        if len(found) == MAX_REASONS:
            break
    return tuple(found)


def _below(part: str, reasons: Reasons) -> Reasons:
    """Return the same reasons with paths that begin one level further out."""
    return tuple(replace(reason, path=(part, *reason.path)) for reason in reasons)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_PARTS} more" if len(names) > _SHOWN_PARTS else ""
    return ", ".join(shown(name) for name in names[:_SHOWN_PARTS]) + more


def in_words(type_: AvroType, depth: int = 0) -> str:
    """Describe a type in few words: `long`, `record Event`, `[null, string]`."""
    if depth > _SHOWN_DEPTH:
        return "..."
    match type_:
        case Primitive(kind=kind):
            return kind
        case Union(branches=branches):
            parts = [in_words(branch, depth + 1) for branch in branches[:_SHOWN_PARTS]]
            more = f", and {len(branches) - _SHOWN_PARTS} more" if len(branches) > _SHOWN_PARTS else ""
            return f"[{', '.join(parts)}{more}]"
        case Array(items=items):
            return f"array of {in_words(items, depth + 1)}"
        case Map(values=values):
            return f"map of {in_words(values, depth + 1)}"
        case Reference(name=name):
            return shown(name)
        case Fixed(name=name):
            return f"fixed {shown(name)}"
        case Enum(name=name):
            return f"enum {shown(name)}"
        case RecordSchema(name=name):
            return f"record {shown(name)}"
