"""Declarations of messages: one frozen dataclass per message, each field annotated with its wire type and versions.

A declaration holds for all versions of a message at once:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ThingRequest(Message):
        API_KEY: ClassVar[int] = 99
        VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
        FLEXIBLE_SINCE: ClassVar[int] = 3
        name: String = ""
        rack: Annotated[String | None, Wire(since=2)] = None

Names, order, versions and defaults are those of Kafka's message definitions (clients/src/main/resources/common/message
in apache/kafka), in snake_case. A struct inside a message is a dataclass without the class variables.

Invariants: every field has a default; a field outside of a version takes its default on decoding, and on encoding must
hold its default unless it is `ignorable`, so that nothing is lost silently (fields of responses are all ignorable: a
server sends as much as the client's version can carry); a tagged field exists in flexible versions only (KIP-482), and
is written only when it differs from its default.
"""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints
from uuid import UUID

from pipeline.model import FileRegion

Piece = bytes | bytearray | memoryview | FileRegion
RecordsData = Piece | Sequence[Piece]

ZERO_UUID = UUID(int=0)


class Kind(Enum):
    """A wire type: its `struct` format if it has a fixed width, else empty."""

    BOOL = "bool", "?", 1
    INT8 = "int8", "b", 1
    INT16 = "int16", "h", 2
    INT32 = "int32", "i", 4
    INT64 = "int64", "q", 8
    FLOAT64 = "float64", "d", 8
    UUID = "uuid", "16s", 16
    STRING = "string", "", 0
    BYTES = "bytes", "", 0
    RECORDS = "records", "", 0
    STRUCT = "struct", "", 0

    @property
    def format(self) -> str:
        """The `struct` format; empty for a type without a fixed width."""
        return self.value[1]

    @property
    def size_bytes(self) -> int:
        """The fixed width; 0 for a type without one."""
        return self.value[2]


Bool = Annotated[bool, Kind.BOOL]
Int8 = Annotated[int, Kind.INT8]
Int16 = Annotated[int, Kind.INT16]
Int32 = Annotated[int, Kind.INT32]
Int64 = Annotated[int, Kind.INT64]
Float64 = Annotated[float, Kind.FLOAT64]
Uuid = Annotated[UUID, Kind.UUID]
String = Annotated[str, Kind.STRING]
Bytes = Annotated[bytes, Kind.BYTES]
Records = Annotated[RecordsData, Kind.RECORDS]
"""Record batches: decoded as a memoryview over the buffer (not copied), encoded from any `RecordsData`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The versions of its message in which a field exists.

    `nullable_since`: the first version in which a `| None` field may be null (default: `since`). `tag` makes the field
    a tagged one. `ignorable`: versions without the field drop its value silently.
    """

    since: int = 0
    until: int | None = None
    nullable_since: int | None = None
    tag: int | None = None
    ignorable: bool = False


class Message:
    """A request or a response, which can be encoded and decoded by itself."""

    __slots__ = ()

    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[tuple[int, int]]
    """First and last version declared."""
    FLEXIBLE_SINCE: ClassVar[int]
    """The first version with compact lengths and tagged fields (KIP-482)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDeclaration:
    """A field of a message or struct, read from its annotation."""

    name: str
    kind: Kind
    struct: type | None
    is_array: bool
    is_nullable: bool
    default: Any
    wire: Wire

    def exists_in(self, version: int) -> bool:
        """True if the field is part of this version."""
        return self.wire.since <= version and (self.wire.until is None or version <= self.wire.until)

    def nullable_in(self, version: int) -> bool:
        """True if null is allowed on the wire in this version."""
        return self.is_nullable and version >= (self.wire.nullable_since or 0)

    def element(self) -> "FieldDeclaration":
        """Return the declaration of an array's element, which is never null."""
        return replace(self, is_array=False, is_nullable=False)


def declarations(cls: type) -> tuple[FieldDeclaration, ...]:
    """Return the fields of a message or struct in wire order."""
    return _declarations(cls)


@cache  # not on the public function: mypy takes a `type[Message]` for unhashable
def _declarations(cls: type) -> tuple[FieldDeclaration, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_declaration(field.name, hints[field.name], field.default) for field in fields(cls))


def _declaration(name: str, hint: Any, default: Any) -> FieldDeclaration:
    if default is MISSING:
        raise TypeError(f"field {name} needs a default")
    wire, hint = _split_wire(hint)
    alternatives = get_args(hint)
    is_nullable = type(None) in alternatives
    if is_nullable and get_origin(hint) is not Annotated:
        remaining = [alternative for alternative in alternatives if alternative is not type(None)]
        hint = remaining[0]
    is_array = get_origin(hint) is Sequence
    if is_array:
        (hint,) = get_args(hint)
    if get_origin(hint) is Annotated:
        kind, struct = hint.__metadata__[0], None
    else:
        kind, struct = Kind.STRUCT, hint
    return FieldDeclaration(
        name=name, kind=kind, struct=struct, is_array=is_array, is_nullable=is_nullable, default=default, wire=wire
    )


def _split_wire(hint: Any) -> tuple[Wire, Any]:
    """Take the Wire off: `Annotated[Int32, Wire(...)]` arrives flattened, the Wire last."""
    if get_origin(hint) is Annotated and isinstance(hint.__metadata__[-1], Wire):
        wire = hint.__metadata__[-1]
        rest = hint.__metadata__[:-1]
        return wire, Annotated[(hint.__origin__, *rest)] if rest else hint.__origin__
    return Wire(), hint


def holds_records(cls: type) -> bool:
    """True if a decoded message keeps views of the buffer that it was decoded from."""
    return _holds_records(cls)


@cache
def _holds_records(cls: type) -> bool:
    return any(
        field.kind is Kind.RECORDS or (field.struct is not None and _holds_records(field.struct))
        for field in declarations(cls)
    )
