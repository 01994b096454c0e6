"""Batches of a few KB that hold hundreds of MiB, and batches of any payload."""

import zlib

import zstandard

from pipeline.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, read_header, write_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec, compress

_CHUNK = bytes(1 << 20)


def bomb(codec: Codec, plain_bytes: int, timestamp_ms: int, *, key: bytes | None = b"key") -> bytearray:
    """A sound batch of one record, whose value is about `plain_bytes` zeros."""
    first = BatchBuilder(Codec.NONE, 1 << 20)
    assert first.append(key, b"", (), timestamp_ms)
    template = first.build()
    value_bytes = plain_bytes // len(_CHUNK) * len(_CHUNK)
    fields = b"\0\0\0" + (b"\1" if key is None else _varint(len(key)) + key) + _varint(value_bytes)
    start = _varint(len(fields) + value_bytes + 1) + fields
    compressor = (
        zstandard.ZstdCompressor().compressobj(size=len(start) + value_bytes + 1)
        if codec is Codec.ZSTD
        else zlib.compressobj(wbits=31)
    )
    payload = compressor.compress(start)
    for _ in range(value_bytes // len(_CHUNK)):
        payload += compressor.compress(_CHUNK)
    payload += compressor.compress(b"\0") + compressor.flush()
    batch = bytearray(HEADER_SIZE) + payload
    header = read_header(template)
    write_header(batch, header._replace(batch_length=len(batch) - LOG_OVERHEAD, attributes=codec))
    return batch


def batch_of(payload: bytes, header: BatchHeader, codec: Codec) -> bytearray:
    """A batch of this payload, sound or not, in this codec; else as the header says."""
    batch = bytearray(HEADER_SIZE) + compress(codec, payload)
    write_header(batch, header._replace(batch_length=len(batch) - LOG_OVERHEAD, attributes=codec))
    return batch


def _varint(value: int) -> bytes:
    value <<= 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
