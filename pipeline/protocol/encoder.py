"""Generates the encoder of one message in one version.

The generated function is `encode(message) -> list[Piece]`. It may raise ProtocolError, and struct.error, TypeError,
AttributeError or UnicodeEncodeError where a value does not fit its wire type: the caller turns these into the first.
An encoder "in pieces" is for very long messages: it joins parts as it goes, so that the message is in memory once and
not twice, and returns long texts and bytes as pieces of their own.

Invariants: only lists and tuples pass as arrays (a string is no array of strings); a value that this version cannot
carry is refused unless the field is ignorable; large records are never copied.
"""

import struct
from collections.abc import Callable
from typing import Any

from pipeline.model import FileRegion
from pipeline.protocol import primitives
from pipeline.protocol.schema import FieldDeclaration, Kind
from pipeline.protocol.source import Source

MAX_PARTS = 1024
"""Parts of a message that an encoder in pieces collects before it joins them."""
LONG_BYTES = 8192
"""Size from which on a text or bytes are a piece of their own then."""


def compile_encoder(cls: type, version: int, flexible: bool, *, in_pieces: bool = False) -> Callable[..., Any]:
    """Return the encoder of the message class in this version."""
    encoder = _Encoder(cls, version, flexible, in_pieces=in_pieces)
    return encoder.compile("encode", f"<encoder of {cls.__name__} v{version}>")


class _Encoder(Source):
    def __init__(self, cls: type, version: int, flexible: bool, *, in_pieces: bool) -> None:
        super().__init__(version, flexible)
        self._in_pieces = in_pieces
        self._formats = ""
        self._arguments: list[str] = []
        self._append = "append"
        self._message = f"{cls.__name__} v{version}"
        self.constants.update(
            uvarint=primitives.uvarint,
            text_size=primitives.text_size,
            ONE_BYTE=primitives.ONE_BYTE,
            payload_size=primitives.payload_size,
            gather=primitives.gather_pieces,
            join=b"".join,
            pack=struct.pack,
            FileRegion=FileRegion,
        )
        with self.block("def encode(message):"):
            self.line("out = []")
            self.line("append = out.append")
            self.line("pieces = []")
            self._struct(cls, "message")
            self._flush()
            with self.block("if out:"):
                self.line("pieces.append(join(out))")
            self.line("return pieces")

    def _refuse(self, field: FieldDeclaration, what: str) -> str:
        return f"raise ProtocolError({f'{self._message}: {field.name} {what}'!r})"

    def _fixed(self, formats: str, argument: str) -> None:
        """Encode a fixed-width value with the next `struct` call."""
        self._formats += formats
        self._arguments.append(argument)

    def _packed(self, *more: tuple[str, str]) -> str:
        """Return the expression that packs the pending run and these (format, argument) pairs; "" if both are empty."""
        formats = self._formats + "".join(form for form, _ in more)
        arguments = [*self._arguments, *(argument for _, argument in more)]
        if not arguments:
            return ""
        if all(argument.lstrip("-").isdigit() for argument in arguments):
            return repr(struct.pack(f">{formats}", *map(int, arguments)))
        return f"{self.packer(formats)}({', '.join(arguments)})"

    def _flush(self) -> None:
        if self._arguments:
            self.line(f"{self._append}({self._packed()})")
        self._forget()

    def _forget(self) -> None:
        self._formats = ""
        self._arguments = []

    def _struct(self, cls: type, source: str) -> None:
        plain, tagged, absent = self.fields(cls)
        for field in absent:
            if not field.wire.ignorable:
                empty = f"{source}.{field.name}"
                if not field.is_array:
                    empty += f" != {self.constant('default', field.default)}"
                with self.block(f"if {empty}:"):
                    self.line(self._refuse(field, "does not exist in this version"))
        for field in plain:
            self._value(field, f"{source}.{field.name}")
        if tagged:
            self._tagged(tagged, source)
        elif self.flexible:
            self._fixed("B", "0")

    def _value(self, field: FieldDeclaration, source: str) -> None:
        if field.is_array:
            self._array(field, source)
        else:
            self._scalar(field, source)

    def _scalar(self, field: FieldDeclaration, source: str) -> None:
        if field.struct is not None:
            item = self.name("item")
            self.line(f"{item} = {source}")
            if field.nullable_in(self.version):
                self._nullable_struct(field.struct, item)
            else:
                self._struct(field.struct, item)
        elif field.kind is Kind.BOOL:
            flag = self.name("flag")
            self.line(f"{flag} = {source}")
            with self.block(f"if {flag} is not True and {flag} is not False:"):
                self.line(self._refuse(field, "must be True or False"))
            self._fixed("?", flag)
        elif field.kind is Kind.UUID:
            self._fixed("16s", f"{source}.bytes")
        elif field.kind.format:
            self._fixed(field.kind.format, source)
        elif field.kind is Kind.RECORDS:
            self._records(field, source)
        else:
            self._text_or_bytes(field, source)

    def _nullable_struct(self, struct: type, item: str) -> None:
        """A byte says whether the struct is there: 1, or -1 for null (KIP-893)."""
        self._flush()
        with self.block(f"if {item} is None:"):
            self.line(f"{self._append}(b'\\xff')")
        with self.block("else:"):
            self.line(f"{self._append}(b'\\1')")
            self._struct(struct, item)
            self._flush()

    def _length(self, length: str, legacy_format: str, *, often_long: bool = False, is_text: bool = False) -> None:
        """End the pending run with a length held by a local: as it is, or plus one as a varint if flexible."""
        if not self.flexible:
            self.line(f"{self._append}({self._packed((legacy_format, length))})")
            self._forget()
            return
        long = f"{'text_size' if is_text else 'uvarint'}({length} + 1)"
        if not self._arguments:
            self.line(f"{self._append}(ONE_BYTE[{length} + 1] if {length} < 127 else {long})")
            return
        with self.block(f"if {length} < 127:"):
            self.line(f"{self._append}({self._packed(('B', f'{length} + 1'))})")
        if often_long:
            low, middle = ("B", f"{length} + 1 & 127 | 128"), ("B", f"{length} + 1 >> 7 & 127 | 128")
            with self.block(f"elif {length} < 16383:"):
                self.line(f"{self._append}({self._packed(low, ('B', f'{length} + 1 >> 7'))})")
            with self.block(f"elif {length} < 2097151:"):
                self.line(f"{self._append}({self._packed(low, middle, ('B', f'{length} + 1 >> 14'))})")
        with self.block("else:"):
            self.line(f"{self._append}({self._packed()} + {long})")
        self._forget()

    def _text_or_bytes(self, field: FieldDeclaration, source: str) -> None:
        raw, length = self.name("raw"), self.name("length")
        convert = ".encode()" if field.kind is Kind.STRING else ""
        self.line(f"{raw} = {source}")
        if field.nullable_in(self.version):
            with self.block(f"if {raw} is None:"):
                self.line(f"{raw} = b''")
                self.line(f"{length} = -1")
            with self.block("else:"):
                self.line(f"{raw} = {raw}{convert}")
                self.line(f"{length} = len({raw})")
        else:
            if convert:
                self.line(f"{raw} = {raw}{convert}")
            self.line(f"{length} = len({raw})")
        self._length(length, "h" if field.kind is Kind.STRING else "i", is_text=field.kind is Kind.STRING)
        if not self._may_cut:
            self.line(f"{self._append}({raw})")
            return
        with self.block(f"if {length} < {LONG_BYTES}:"):
            self.line(f"append({raw})")
        with self.block("else:"):
            self._cut()
            self.line(f"pieces.append({raw})")

    @property
    def _may_cut(self) -> bool:
        """True if the parts so far may become a piece: not inside of tagged fields, whose size comes first."""
        return self._in_pieces and self._append == "append"

    def _cut(self) -> None:
        self.line("pieces.append(join(out))")
        self.line("out.clear()")

    def _records(self, field: FieldDeclaration, source: str) -> None:
        raw, kind, length = self.name("raw"), self.name("kind"), self.name("length")
        self.line(f"{raw} = {source}")
        self.line(f"{kind} = {raw}.__class__")
        with self.block(f"if {kind} is bytes or {kind} is bytearray:"):
            self.line(f"{length} = len({raw})")
        with self.block(f"elif {kind} is memoryview and {raw}.itemsize == 1 and {raw}.c_contiguous:"):
            self.line(f"{length} = {raw}.nbytes")
        with self.block(f"elif {raw} is None:"):
            self.line(f"{length} = -1" if field.nullable_in(self.version) else self._refuse(field, "must not be null"))
        with self.block("else:"):
            self.line(f"{length} = payload_size({raw})")
        self._length(length, "i", often_long=True)
        large = f"{length} >= {primitives.BY_REFERENCE_BYTES}"
        with self.block(f"if {large} or {kind} is FileRegion or {kind} is list or {kind} is tuple:"):
            self._cut()
            self.line(f"pieces += gather({raw}) if {kind} is list or {kind} is tuple else ({raw},)")
        with self.block(f"elif {length} > 0:"):
            self.line(f"{self._append}({raw})")

    def _array(self, field: FieldDeclaration, source: str) -> None:
        items, count = self.name("items"), self.name("count")
        self.line(f"{items} = {source}")
        with self.block(f"if {items}.__class__ is tuple or {items}.__class__ is list:"):
            self.line(f"{count} = len({items})")
        if field.nullable_in(self.version):
            with self.block(f"elif {items} is None:"):
                self.line(f"{items} = ()")
                self.line(f"{count} = -1")
        with self.block("else:"):
            self.line(self._refuse(field, "must be a list or a tuple"))
        self._length(count, "i")
        if field.kind.format and field.kind not in {Kind.UUID, Kind.BOOL}:
            with self.block(f"if {items}:"):
                self.line(f"{self._append}(pack(f'>{{{count}}}{field.kind.format}', *{items}))")
            return
        item = self.name("item")
        with self.block(f"for {item} in {items}:"):
            self._scalar(field.element(), item)
            self._flush()
            if self._may_cut:
                with self.block(f"if len(out) > {MAX_PARTS}:"):
                    self._cut()

    def _tagged(self, tagged: list[FieldDeclaration], source: str) -> None:
        """Encode the tagged fields that differ from their defaults, by tag."""
        self._flush()
        held = []
        for field in tagged:
            value, default = self.name("tagged"), self.constant("default", field.default)
            self.line(f"{value} = {source}.{field.name}")
            held.append((field, value, default))
        with self.block(f"if {' and '.join(f'{value} is {default}' for _, value, default in held)}:"):
            self.line(f"{self._append}(b'\\0')")
        with self.block("else:"):
            outer, present = self._append, self.name("present")
            self.line(f"{present} = []")
            for field, value, default in held:
                body = self.name("body")
                differs = f"{value} != {default}" if not field.is_array or field.default is None else value
                with self.block(f"if {differs}:"):
                    self.line(f"{body} = []")
                    self._append = f"{body}.append"
                    self._value(field, value)
                    self._flush()
                    self.line(f"{body} = join({body})")
                    self.line(f"{present}.append(uvarint({field.wire.tag}) + uvarint(len({body})) + {body})")
            self._append = outer
            self.line(f"{self._append}(uvarint(len({present})))")
            self.line(f"{self._append}(join({present}))")
