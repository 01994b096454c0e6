"""Requests as an enemy sends them: of any api key and version, whole, then cut, stretched or overwritten."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from pipeline.errors import ProtocolError
from pipeline.model import FileRegion
from pipeline.protocol.api import ApiKey
from pipeline.protocol.codec import encode, is_flexible
from pipeline.protocol.schema import FieldDeclaration, Kind, Message, declarations
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec

NUMBERS = (-(2**31), -2, -1, 0, 1, 2, 3, 100, 70_000, 2**31 - 1)
LENGTHS = (b"\xff\xff", b"\x80\x00", b"\x7f\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x7f\xff\xff\xff")
VARINT_LENGTHS = (b"\x00", b"\xff\xff\xff\xff\x0f", b"\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80")
BODIES_OF_EACH_VERSION = 4
WRONG_SIZES = 0.03
"""Share of frames that announce a negative or a much larger size."""


class HostileRequests:
    """A stream of frames from one seed. `names` are the strings that requests use where they need any."""

    def __init__(self, apis: Mapping[int, ApiKey], names: tuple[str, ...], seed: int) -> None:
        self._random = Random(seed)
        self._names = names
        self._bodies = [
            (api_key, version, self._body(api_key.request, version))
            for api_key in apis.values()
            for version in range(api_key.min_version, api_key.max_version + 1)
            for _ in range(BODIES_OF_EACH_VERSION)
        ]

    def frames(self, count: int) -> Iterator[bytes]:
        """So many frames, each with its number as correlation id."""
        spoilers = (self._cut, self._stretch, self._overwrite_length, self._flip, self._random_body, self._leave)
        for number in range(count):
            api_key, version, body = self._random.choice(self._bodies)
            tags = b"\0" if is_flexible(api_key.request, version) else b""
            head = struct.pack(">hhih", api_key, version, number, 3) + b"bad" + tags
            spoilt = head + self._random.choice(spoilers)(body)
            size = len(spoilt)
            if self._random.random() < WRONG_SIZES:
                size = self._random.choice((-(2**31), -1, size + 1000, 100_000_000, 2**31 - 1))
            yield struct.pack(">i", size) + spoilt

    def _cut(self, body: bytes) -> bytes:
        return body[: self._random.randrange(len(body) + 1)]

    def _stretch(self, body: bytes) -> bytes:
        return body + self._random.randbytes(self._random.choice((1, 3, 1000, 20_000)))

    def _overwrite_length(self, body: bytes) -> bytes:
        length = self._random.choice(LENGTHS + VARINT_LENGTHS)
        position = self._random.randrange(len(body) + 1)
        return body[:position] + length + body[position + len(length) :]

    def _flip(self, body: bytes) -> bytes:
        flipped = bytearray(body)
        for _ in range(min(len(body), self._random.randrange(1, 4))):
            flipped[self._random.randrange(len(body))] = self._random.randrange(256)
        return bytes(flipped)

    def _random_body(self, _body: bytes) -> bytes:
        return self._random.randbytes(self._random.choice((0, 1, 4, 30, 300)))

    def _leave(self, body: bytes) -> bytes:
        return body

    def _body(self, cls: type[Message], version: int) -> bytes:
        while True:
            message = self._message(cls, version)
            try:
                pieces = encode(message, version)
            except ProtocolError:
                continue
            return b"".join(piece for piece in pieces if not isinstance(piece, FileRegion))

    def _message(self, cls: type, version: int) -> Any:
        return cls(
            **{field.name: self._field(field, version) for field in declarations(cls) if field.exists_in(version)}
        )

    def _field(self, field: FieldDeclaration, version: int) -> Any:
        if field.nullable_in(version) and self._random.random() < 0.2:
            return None
        if field.is_array:
            element = replace(field, is_array=False, is_nullable=False)
            return tuple(self._field(element, version) for _ in range(self._random.choice((0, 1, 1, 2, 3))))
        if field.struct is not None:
            return self._message(field.struct, version)
        return self._value(field.kind)

    def _batch(self) -> bytes:
        builder = BatchBuilder(self._random.choice((Codec.NONE, Codec.GZIP)), 10_000)
        for _ in range(self._random.choice((1, 3))):
            key, value = (self._random.choice((None, b"", self._random.randbytes(50))) for _ in range(2))
            builder.append(key, value, (), self._random.choice(NUMBERS[2:]))
        return bytes(builder.build(*(self._random.choice((-1, 0, 1, 7)) for _ in range(3))))

    def _value(self, kind: Kind) -> Any:
        match kind:
            case Kind.STRING:
                return self._random.choice(self._names)
            case Kind.RECORDS if self._random.random() < 0.7:
                return self._batch()
            case Kind.BYTES | Kind.RECORDS:
                return self._random.randbytes(self._random.choice((0, 3, 61, 200)))
            case Kind.UUID:
                return UUID(int=self._random.choice((0, 1, self._random.getrandbits(128))))
            case Kind.BOOL:
                return self._random.random() < 0.5
            case Kind.FLOAT64:
                return self._random.choice((-1.0, 0.0, 0.5, 1e300, float("nan"), float("inf")))
            case _:
                bits = 8 * kind.size_bytes
                number = self._random.choice(NUMBERS)
                if kind.format.isupper():
                    return number % 2**bits
                return max(-(2 ** (bits - 1)), min(number, 2 ** (bits - 1) - 1))


def memory_kb(pid: int, name: str) -> int:
    """Resident memory in KiB: now (VmRSS), or at its highest (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
