"""Batches that brokers take and that no reader can open."""

import struct
from collections.abc import Callable, Mapping

from pipeline.records.batch import read_header, write_crc
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.bombs import batch_of, bomb


def sound(*values: bytes, timestamp_ms: int = 1) -> bytearray:
    """A batch without compression."""
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    for value in values:
        assert builder.append(None, value, (), timestamp_ms)
    return builder.build()


def patched(batch: bytearray, position: int, layout: str, value: int) -> bytearray:
    """The batch with another number at the position, and a right checksum."""
    struct.pack_into(layout, batch, position, value)
    write_crc(batch, 0, len(batch))
    return batch


BAD_BATCHES: Mapping[str, Callable[[], bytearray]] = {
    "garbage": lambda: patched(sound(b"no gzip", b"b"), 21, ">h", Codec.GZIP),
    "bomb": lambda: bomb(Codec.ZSTD, 80 << 20, 1),
    "no codec": lambda: patched(sound(b"a", b"b"), 21, ">h", 7),
    "length": lambda: patched(sound(b"a", b"b"), 61, ">b", 100),
    "count": lambda: batch_of(bytes(sound(b"a")[61:]), read_header(sound(b"a", b"b", b"c")), Codec.LZ4),
}
