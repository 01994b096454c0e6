"""The codecs of a batch's payload, each in the framing Kafka writes.

Invariants:
- `decompress` never yields more than `max_bytes` and never allocates beyond it on the word of the data;
  whatever else is wrong with the data, it raises CorruptBatchError and nothing else.
- A library is loaded when its codec is first used, so that a broker, which never opens a payload, loads none.

Framings: gzip (RFC 1952, any number of members), snappy in the blocks of xerial's SnappyOutputStream (raw snappy is
read too), an LZ4 frame with independent blocks (KIP-57), a zstd frame (KIP-110).
"""

import contextlib
import threading
import zlib
from enum import IntEnum

from pipeline.errors import CorruptBatchError

ReadableBuffer = bytes | bytearray | memoryview

LZ4_FAST_LEVEL = 9
"""Kafka's default, which stands for the fast compressor; all others are levels of the thorough one."""
ZSTD_USUAL_LEVEL = 3

_GZIP_WINDOW_BITS = 31
_GZIP_CHUNK_BYTES = 16 * 1024
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS = b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_HEADER_SIZE = len(_XERIAL_MAGIC) + len(_XERIAL_VERSIONS)
_XERIAL_BLOCK_BYTES = 32 * 1024
_LZ4_LIKELY_RATIO = 4
_LZ4_FIRST_BYTES = 64 * 1024
_ZSTD_LIKELY_RATIO = 16

# A zstd context is dear to make and must not be used by two threads at once.
_of_thread = threading.local()


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: ReadableBuffer, level: int | None = None) -> ReadableBuffer:
    """`data` in the codec's framing; without a codec, `data` itself. Levels are Kafka's (KIP-390), None the usual."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            compressor = zlib.compressobj(-1 if level is None else level, wbits=_GZIP_WINDOW_BITS)
            return compressor.compress(data) + compressor.flush()
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            import lz4.frame

            return lz4.frame.compress(
                data,
                compression_level=0 if level in {None, LZ4_FAST_LEVEL} else level,
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                store_size=False,
            )
        case Codec.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=ZSTD_USUAL_LEVEL if level is None else level).compress(data)


def decompress(codec: Codec, data: ReadableBuffer, max_bytes: int) -> ReadableBuffer:
    """The plain bytes, at most `max_bytes`; without a codec, `data` itself. Raises CorruptBatchError."""
    match codec:
        case Codec.NONE:
            plain = data
        case Codec.GZIP:
            plain = _decompress_gzip(data, max_bytes)
        case Codec.SNAPPY:
            plain = _decompress_snappy(data, max_bytes)
        case Codec.LZ4:
            plain = _decompress_lz4(data, max_bytes)
        case Codec.ZSTD:
            plain = _decompress_zstd(data, max_bytes)
    _check_size(len(plain), max_bytes)
    return plain


def _check_size(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise CorruptBatchError(f"uncompressed it is larger than the {max_bytes} bytes allowed")


def _decompress_gzip(data: ReadableBuffer, max_bytes: int) -> bytearray:
    # Small chunks: zlib copies what follows a member, which would be quadratic in the number of members.
    plain = bytearray()
    position = 0
    with memoryview(data) as view:
        while position < len(view):
            member = zlib.decompressobj(_GZIP_WINDOW_BITS)
            while not member.eof:
                chunk = view[position : position + _GZIP_CHUNK_BYTES]
                if not chunk:
                    raise CorruptBatchError("gzip data ends within a member")
                try:
                    plain += member.decompress(chunk, max_bytes - len(plain) + 1)
                except zlib.error as error:
                    raise CorruptBatchError(f"not gzip data: {error}") from error
                _check_size(len(plain), max_bytes)
                position += len(chunk) - len(member.unconsumed_tail) - len(member.unused_data)
    return plain


def _compress_xerial(data: ReadableBuffer) -> bytearray:
    from cramjam import snappy

    framed = bytearray(_XERIAL_MAGIC + _XERIAL_VERSIONS)
    with memoryview(data) as view:
        for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
            block = memoryview(snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
            framed += len(block).to_bytes(4, "big")
            framed += block
    return framed


def _decompress_snappy(data: ReadableBuffer, max_bytes: int) -> bytearray:
    plain = bytearray()
    with memoryview(data) as view:
        if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
            _append_snappy_block(plain, view, max_bytes)
            return plain
        if len(view) < _XERIAL_HEADER_SIZE:
            raise CorruptBatchError("snappy data ends within its header")
        position = _XERIAL_HEADER_SIZE
        while position < len(view):
            start = position + 4
            position = start + int.from_bytes(view[position:start], "big")
            if start > len(view) or position > len(view):
                raise CorruptBatchError("snappy data ends within a block")
            _append_snappy_block(plain, view[start:position], max_bytes)
    return plain


def _append_snappy_block(plain: bytearray, block: memoryview, max_bytes: int) -> None:
    import cramjam

    try:
        # The library allocates what the block says, so that is checked first.
        size = cramjam.snappy.decompress_raw_len(block)
        _check_size(len(plain) + size, max_bytes)
        plain += memoryview(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"not snappy data: {error}") from error


def _decompress_lz4(data: ReadableBuffer, max_bytes: int) -> bytearray:
    import lz4.frame

    decompressor = lz4.frame.LZ4FrameDecompressor()
    plain = bytearray()
    # The library allocates what it may yield at most: a likely size first, more only where there is more.
    allowance = max(_LZ4_LIKELY_RATIO * len(data), _LZ4_FIRST_BYTES)
    while not decompressor.eof:
        try:
            piece = decompressor.decompress(data, max_length=min(allowance, max_bytes + 1 - len(plain)))
        except RuntimeError as error:
            raise CorruptBatchError(f"not an LZ4 frame: {error}") from error
        plain += piece
        _check_size(len(plain), max_bytes)
        if not decompressor.eof and (decompressor.needs_input or not piece):
            raise CorruptBatchError("LZ4 data ends within its frame")
        allowance *= 4
        data = b""
    if decompressor.unused_data:
        raise CorruptBatchError("bytes follow the LZ4 frame")
    return plain


def _decompress_zstd(data: ReadableBuffer, max_bytes: int) -> bytes:
    import zstandard

    if not hasattr(_of_thread, "zstd"):
        _of_thread.zstd = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _of_thread.zstd
    try:
        # The limit given to the library holds, and is allocated, only for frames that do not tell their size.
        size = zstandard.frame_content_size(data)
        _check_size(size, max_bytes)
        likely_bytes = _ZSTD_LIKELY_RATIO * len(data)
        if size < 0 and likely_bytes < max_bytes:
            with contextlib.suppress(zstandard.ZstdError):
                return decompressor.decompress(data, max_output_size=likely_bytes, allow_extra_data=False)
        return decompressor.decompress(data, max_output_size=max(max_bytes, 1), allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptBatchError(f"not a zstd frame of at most {max_bytes} bytes: {error}") from error
