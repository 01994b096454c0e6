"""Splits an Avro object container file (Avro 1.12) into its blocks, and opens one. Pure."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import cramjam
import zstandard

from pipeline.errors import PipelineError

_MAGIC: Final = b"Obj\x01"
_SYNC_SIZE: Final = 16
_MAX_LONG_BYTES: Final = 10


class ContainerDamagedError(PipelineError):
    """The bytes are not a whole container file."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container file in memory. `start` is the position of its first block."""

    name: str
    data: memoryview
    schema: str
    codec: str
    sync: bytes
    start: int

    def blocks(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the number of datums and the compressed content of each block. Raises ContainerDamagedError."""
        at, size = self.start, len(self.data)
        while at < size:
            count, at = _read_long(self.data, at, self.name)
            length, at = _read_long(self.data, at, self.name)
            end = at + length
            if count < 0 or length < 0 or self.data[end : end + _SYNC_SIZE] != self.sync:
                raise ContainerDamagedError(self.name, f"the block at byte {at} is not whole")
            yield count, self.data[at:end]
            at = end + _SYNC_SIZE


def read_container(data: bytes, name: str) -> Container:
    """Return the container in `data`. Raises ContainerDamagedError."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise ContainerDamagedError(name, "is no Avro container")
    view, at = memoryview(data), len(_MAGIC)
    metadata: dict[bytes, bytes] = {}
    while True:
        count, at = _read_long(view, at, name)
        if count == 0:
            break
        if count < 0:
            count = -count
            _, at = _read_long(view, at, name)
        for _ in range(count):
            key, at = _read_bytes(view, at, name)
            metadata[key], at = _read_bytes(view, at, name)
    sync = bytes(view[at : at + _SYNC_SIZE])
    if len(sync) < _SYNC_SIZE or b"avro.schema" not in metadata:
        raise ContainerDamagedError(name, "has no whole header")
    return Container(
        name=name,
        data=view,
        schema=metadata[b"avro.schema"].decode(),
        codec=metadata.get(b"avro.codec", b"null").decode(),
        sync=sync,
        start=at + _SYNC_SIZE,
    )


def open_block(codec: str, payload: memoryview, name: str) -> bytes:
    """Return the datums of a block. Raises ContainerDamagedError."""
    try:
        match codec:
            case "null":
                return bytes(payload)
            case "deflate":
                return zlib.decompress(payload, wbits=-15)
            case "zstandard":
                return zstandard.ZstdDecompressor().decompressobj().decompress(payload)
            case "snappy":
                opened = bytes(cramjam.snappy.decompress_raw(payload[:-4]))
                if zlib.crc32(opened) == int.from_bytes(payload[-4:], "big"):
                    return opened
                raise ContainerDamagedError(name, "the checksum of a block is wrong")
            case _:
                raise ContainerDamagedError(name, f"has the codec {codec}")
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError) as error:
        raise ContainerDamagedError(name, f"a block cannot be opened: {error}") from error


def _read_long(view: memoryview, at: int, name: str) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_LONG_BYTES):
        if at + index >= len(view):
            break
        byte = view[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + index + 1
    raise ContainerDamagedError(name, f"the number at byte {at} is not whole")


def _read_bytes(view: memoryview, at: int, name: str) -> tuple[bytes, int]:
    length, at = _read_long(view, at, name)
    if length < 0 or at + length > len(view):
        raise ContainerDamagedError(name, f"the text at byte {at} is not whole")
    return bytes(view[at : at + length]), at + length
