"""Writes Avro object container files (Avro 1.12) block by block, from encoded datums.

Each file has one schema, whose text is verbatim in the header.
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from hashlib import md5
from typing import Final, Protocol

import cramjam
import zstandard

MAGIC: Final = b"Obj\x01"


def _snappy(data: memoryview) -> bytes:
    """Return a raw snappy block, followed by the big-endian CRC-32 of the plain data."""
    return bytes(cramjam.snappy.compress_raw(data)) + struct.pack(">I", zlib.crc32(data))


def _deflate(data: memoryview) -> bytes:
    compressor = zlib.compressobj(level=6, wbits=-15)
    return compressor.compress(data) + compressor.flush()


def _zstandard(data: memoryview) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


CODECS: Mapping[str, Callable[[memoryview], bytes]] = {
    "null": bytes,
    "snappy": _snappy,
    "deflate": _deflate,
    "zstandard": _zstandard,
}


def encode_long(value: int) -> bytes:
    """Encode a zigzag number of Avro."""
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


class Appendable(Protocol):
    """Destination of a file's bytes."""

    def write(self, data: bytes, /) -> object:
        """Append all of `data`."""


class ContainerWriter:
    """Writes one container file into `sink`, which stays open."""

    def __init__(self, sink: Appendable, schema: str, codec: str, unique_name: str) -> None:
        """`unique_name` makes the sync marker: files of different names have different markers."""
        self._sink = sink
        self._compress = CODECS[codec]
        self._sync = md5(unique_name.encode(), usedforsecurity=False).digest()
        metadata = {"avro.schema": schema.encode(), "avro.codec": codec.encode()}
        header = [MAGIC, encode_long(len(metadata))]
        for key, value in metadata.items():
            header += [encode_long(len(key)), key.encode(), encode_long(len(value)), value]
        sink.write(b"".join([*header, encode_long(0), self._sync]))

    def write_block(self, datums: memoryview, count: int) -> None:
        """Write a block of `count` datums that lie end to end."""
        if not count:
            return
        self.copy_block(self._compress(datums), count)

    def copy_block(self, payload: bytes | memoryview, count: int) -> None:
        """Write a block that another container of this codec and schema holds: `payload` is its content there."""
        self._sink.write(b"".join([encode_long(count), encode_long(len(payload)), payload, self._sync]))
