"""Generates the decoder of one message in one version.

The generated function is `decode(data, position, limit, budget) -> (message, position)`, `data` a memoryview of `limit`
bytes, `budget` the number of elements and unknown tagged fields that the message may have. It may raise ProtocolError,
and IndexError, struct.error or UnicodeDecodeError where bytes are missing or are no text: the caller turns these into
the first.

Invariants: every length is compared with the bytes that remain before anything is allocated or looped over, and every
count with the budget, since an element may take thirty times its bytes in memory; no string is longer than
`MAX_STRING_BYTES`, not in compact form either, as in Kafka's generated readers; the frozen dataclass' `__init__` is not
run, as it would cost ten times as much: an object of a mutable twin class with the same slots is filled, then gets the
frozen class.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from pipeline.errors import TooManyElementsError
from pipeline.protocol import primitives
from pipeline.protocol.schema import FieldDeclaration, Kind, declarations
from pipeline.protocol.source import Source

_SIZES = {"B": 1, **{kind.format: kind.size_bytes for kind in Kind if kind.format}}


def compile_decoder(cls: type, version: int, flexible: bool) -> Callable[..., Any]:
    """Return the decoder of the message class in this version."""
    return _Decoder(cls, version, flexible).compile("decode", f"<decoder of {cls.__name__} v{version}>")


@cache
def _twin(cls: type) -> type:
    """A mutable class with the slots of the frozen one."""
    return type(f"_Mutable{cls.__name__}", cls.__bases__, {"__slots__": tuple(f.name for f in declarations(cls))})


def least_bytes(cls: type, version: int, flexible: bool) -> int:
    """Return the fewest bytes that a struct takes, to refuse array lengths that cannot be true."""
    size = 1 if flexible else 0
    for field in declarations(cls):
        if field.exists_in(version) and field.wire.tag is None:
            size += _least_bytes_of_field(field, version, flexible)
    return size


def _least_bytes_of_field(field: FieldDeclaration, version: int, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if field.struct is not None:
        return 1 if field.nullable_in(version) else least_bytes(field.struct, version, flexible)
    return field.kind.size_bytes or (1 if flexible else 2 if field.kind is Kind.STRING else 4)


class _Decoder(Source):
    def __init__(self, cls: type, version: int, flexible: bool) -> None:
        super().__init__(version, flexible)
        self._formats: list[str] = []
        self._targets: list[str] = []
        self._empty = 1 if flexible else 0
        self._message = f"{cls.__name__} v{version}"
        self.constants.update(
            long_uvarint=primitives.long_uvarint, read_uvarint=primitives.read_uvarint, uuid_of=primitives.uuid_of
        )
        with self.block("def decode(data, position, limit, budget):"):
            result = self._struct(cls)
            self._flush()
            self.line(f"return {result}, position")

    def _fail(self, field: FieldDeclaration, what: str) -> str:
        return f"raise ProtocolError({f'{self._message}: {field.name} {what}'!r})"

    def _fixed(self, formats: str, target: str) -> None:
        """Decode a fixed-width value with the next `struct` call."""
        self._formats.append(formats)
        self._targets.append(target)

    def _flush(self) -> None:
        if not self._formats:
            return
        if self._formats == ["B"]:
            self.line(f"{self._targets[0]} = data[position]")
        else:
            self.line(f"{', '.join(self._targets)}, = {self.unpacker(''.join(self._formats))}(data, position)")
        self.line(f"position += {sum(_SIZES[formats] for formats in self._formats)}")
        self._formats.clear()
        self._targets.clear()

    def _struct(self, cls: type) -> str:
        """Decode the fields and make the object. Return the local that holds it."""
        plain, tagged, absent = self.fields(cls)
        values = {field.name: self._value(field) for field in plain}
        for field in (*tagged, *absent):
            values[field.name] = self.constant("default", field.default)
        if self.flexible:
            self._tagged(tagged, values)
        else:
            self._flush()
        item = self.name("item")
        self.line(f"{item} = {self.constant('mutable', _twin(cls))}()")
        for name, value in values.items():
            self.line(f"{item}.{name} = {value}")
        self.line(f"{item}.__class__ = {self.constant('frozen', cls)}")
        return item

    def _value(self, field: FieldDeclaration) -> str:
        """Decode one field. Return the expression of its value, valid once the pending run is flushed."""
        if field.is_array:
            return self._array(field)
        return self._scalar(field)

    def _scalar(self, field: FieldDeclaration) -> str:
        if field.struct is not None:
            return self._nullable_struct(field) if field.nullable_in(self.version) else self._struct(field.struct)
        if field.kind is Kind.UUID:
            target = self.name("uuid")
            self._fixed(field.kind.format, target)
            return f"uuid_of({target})"
        if field.kind.format:
            target = self.name("value")
            self._fixed(field.kind.format, target)
            return target
        return self._sized(field)

    def _nullable_struct(self, field: FieldDeclaration) -> str:
        """A byte says whether the struct is there: 1, or -1 for null (KIP-893)."""
        assert field.struct is not None
        present, value = self.name("present"), self.name("value")
        self._fixed("b", present)
        self._flush()
        with self.block(f"if {present} < 0:"):
            self.line(f"{value} = None")
        with self.block("else:"):
            item = self._struct(field.struct)
            self._flush()
            self.line(f"{value} = {item}")
        return value

    def _length(self, legacy_format: str, *, often_long: bool = False, text: FieldDeclaration | None = None) -> str:
        """Decode a length (a compact one is one more). Return its local; a value below `self._empty` stands for null.

        The length of a `text` is limited in every version; an int16 cannot exceed the limit.
        """
        length = self.name("length")
        self._fixed("B" if self.flexible else legacy_format, length)
        self._flush()
        if self.flexible:
            with self.block(f"if {length} > 127:"):
                if often_long:
                    self._two_or_three_bytes(length)
                else:
                    self.line(f"{length}, position = long_uvarint(data, position, {length})")
                if text is not None:
                    with self.block(f"if {length} > {primitives.MAX_STRING_BYTES + 1}:"):
                        self.line(self._fail(text, f"is longer than {primitives.MAX_STRING_BYTES} bytes"))
        return length

    def _two_or_three_bytes(self, length: str) -> None:
        """Decode the rest of a varint, up to three bytes without a call."""
        middle, high = self.name("middle"), self.name("high")
        self.line(f"{middle} = data[position]")
        with self.block(f"if {middle} < 128:"):
            self.line(f"{length} = {middle} << 7 | {length} & 127")
            self.line("position += 1")
        with self.block("else:"):
            self.line(f"{high} = data[position + 1]")
            with self.block(f"if {high} < 128:"):
                self.line(f"{length} = {high} << 14 | ({middle} & 127) << 7 | {length} & 127")
                self.line("position += 2")
            with self.block("else:"):
                self.line(f"{length}, position = long_uvarint(data, position, {length})")

    def _sized(self, field: FieldDeclaration) -> str:
        is_text = field.kind is Kind.STRING
        length = self._length(
            "h" if is_text else "i", often_long=field.kind is Kind.RECORDS, text=field if is_text else None
        )
        value, end = self.name("value"), self.name("end")
        with self.block(f"if {length} < {self._empty}:"):
            self.line(f"{value} = None" if field.nullable_in(self.version) else self._fail(field, "must not be null"))
        with self.block("else:"):
            self.line(f"{end} = position + {length}{' - 1' if self.flexible else ''}")
            with self.block(f"if {end} > limit:"):
                self.line(self._fail(field, "runs past the end"))
            part = f"data[position:{end}]"
            form = {Kind.STRING: f"str({part}, 'utf-8')", Kind.BYTES: f"bytes({part})", Kind.RECORDS: part}
            self.line(f"{value} = {form[field.kind]}")
            self.line(f"position = {end}")
        return value

    def _array(self, field: FieldDeclaration) -> str:
        count = self._length("i")
        items = self.name("items")
        least = self._least_bytes_of_item(field)
        with self.block(f"if {count} > {self._empty}:"):
            if self.flexible:
                self.line(f"{count} -= 1")
            with self.block(f"if {count} * {least} > limit - position:"):
                self.line(self._fail(field, "has more elements than there are bytes"))
            self._spend(count)
            if field.kind.format and field.kind is not Kind.UUID:
                self.constants["unpack"] = struct.unpack_from
                self.line(f"{items} = unpack(f'>{{{count}}}{field.kind.format}', data, position)")
                self.line(f"position += {count} * {field.kind.size_bytes}")
            else:
                self.line(f"{items} = []")
                with self.block(f"for _ in range({count}):"):
                    item = self._scalar(field.element())
                    self._flush()
                    self.line(f"{items}.append({item})")
                self.line(f"{items} = tuple({items})")
        with self.block(f"elif {count} == {self._empty}:"):
            self.line(f"{items} = ()")
        with self.block("else:"):
            self.line(f"{items} = None" if field.nullable_in(self.version) else self._fail(field, "must not be null"))
        return items

    def _spend(self, count: str) -> None:
        self.line(f"budget -= {count}")
        with self.block("if budget < 0:"):
            self.constants["TooManyElementsError"] = TooManyElementsError
            self.line(f"raise TooManyElementsError({f'{self._message} has more elements than are taken'!r})")

    def _least_bytes_of_item(self, field: FieldDeclaration) -> int:
        if field.struct is not None:
            return max(1, least_bytes(field.struct, self.version, self.flexible))
        return field.kind.size_bytes or (1 if self.flexible else 2 if field.kind is Kind.STRING else 4)

    def _tagged(self, tagged: list[FieldDeclaration], values: dict[str, str]) -> None:
        """Decode the tagged fields of a struct. Unknown fields are skipped."""
        count = self.name("tags")
        self._fixed("B", count)
        self._flush()
        held = {field.name: self.name("tagged") for field in tagged}
        for field in tagged:
            self.line(f"{held[field.name]} = {values[field.name]}")
        with self.block(f"if {count}:"):
            with self.block(f"if {count} > 127:"):
                self.line(f"{count}, position = long_uvarint(data, position, {count})")
            self._spend(count)
            tag, size, end = self.name("tag"), self.name("size"), self.name("end")
            with self.block(f"for _ in range({count}):"):
                self.line(f"{tag}, position = read_uvarint(data, position)")
                self.line(f"{size}, position = read_uvarint(data, position)")
                self.line(f"{end} = position + {size}")
                with self.block(f"if {end} > limit:"):
                    self.line(f"raise ProtocolError({f'{self._message}: a tagged field runs past the end'!r})")
                for field in tagged:
                    with self.block(f"if {tag} == {field.wire.tag}:"):
                        value = self._value(field)
                        self._flush()
                        self.line(f"{held[field.name]} = {value}")
                        with self.block(f"if position != {end}:"):
                            self.line(self._fail(field, "is not as long as its tag says"))
                self.line(f"position = {end}")
        values.update(held)
