"""Codecs of a batch's payload, each in the framing that Kafka writes.

Invariants:
- `decompress` never returns more than `max_bytes`, and never allocates more because the data say so. Any fault of the
  data raises CorruptBatchError and no other error.
- `plain_pieces` yields the bytes that `decompress` returns, and refuses the same data, perhaps after the first pieces.
  It holds one piece at a time, and never takes more memory than `opening_bytes` says beforehand.
- A library is loaded when its codec is first used: a broker seldom opens a payload.

Framings: gzip (RFC 1952, any number of members), snappy in the blocks of xerial's SnappyOutputStream (raw snappy is
read too), an LZ4 frame with independent blocks (KIP-57), a zstd frame (KIP-110).
"""

import contextlib
import mmap
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum

from pipeline.errors import CorruptBatchError, OpenedBatchTooLargeError

ReadableBuffer = bytes | bytearray | memoryview

LZ4_FAST_LEVEL = 9
"""Kafka's default, which means the fast compressor; all others are levels of the thorough one."""
ZSTD_USUAL_LEVEL = 3

GZIP_WINDOW_BITS = 31
_GZIP_CHUNK_BYTES = 16 * 1024
_SMALL_GZIP_BYTES = 16 << 20
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS = b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_HEADER_SIZE = len(_XERIAL_MAGIC) + len(_XERIAL_VERSIONS)
_XERIAL_BLOCK_BYTES = 32 * 1024
_LIKELY_RATIO = 8
_LIMIT_GROWTH = 4
_LEAST_LIMIT_BYTES = 1 << 20
_LZ4_LIKELY_RATIO = 4
_LZ4_FIRST_BYTES = 64 * 1024
_ZSTD_LIKELY_RATIO = 16

PIECE_BYTES = 256 * 1024
FRAME_HEADER_BYTES = 32
"""Bound of the header of a frame, for all codecs."""
_SNAPPY_MAX_RATIO = 22
"""Three bytes of snappy hold 64 at most."""
_LZ4_INPUT_BYTES = 64 * 1024
_ZSTD_SMALL_BYTES = 1 << 20
_ZSTD_INPUT_BYTES = 128
"""A block of four bytes may hold 128 KiB, so this much input yields 4 MiB at most."""
_GZIP_MEMORY_BYTES = 1 << 20
_STREAM_MEMORY_BYTES = 10 << 20
"""Two blocks of the largest size, and the output of one input."""

_OF_THREAD = threading.local()
"""The zstd context of each thread: it is expensive to make, and two threads must not share one."""


class Codec(IntEnum):
    """Compression codecs: bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: ReadableBuffer, level: int | None = None) -> ReadableBuffer:
    """Return `data` in the codec's framing; without a codec `data` itself. Levels are Kafka's (KIP-390), or None."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            compressor = zlib.compressobj(-1 if level is None else level, wbits=GZIP_WINDOW_BITS)
            return compressor.compress(data) + compressor.flush()
        case Codec.SNAPPY:
            return b"".join(xerial_pieces((data,)))
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
    """Return the plain bytes, at most `max_bytes`; without a codec `data` itself. Raises CorruptBatchError."""
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
        raise OpenedBatchTooLargeError(max_bytes)


def _decompress_gzip(data: ReadableBuffer, max_bytes: int) -> ReadableBuffer:
    pieces = _gzip_pieces(data, PIECE_BYTES)
    if max_bytes <= _SMALL_GZIP_BYTES:
        plain = bytearray()
        for piece in pieces:
            plain += piece
            _check_size(len(plain), max_bytes)
        return plain
    # A growing buffer is copied again and again, and the heap keeps the smaller copies. A map of `max_bytes` takes
    # memory only as far as it is written.
    view, end = memoryview(mmap.mmap(-1, max_bytes)), 0
    for piece in pieces:
        start, end = end, end + len(piece)
        _check_size(end, max_bytes)
        view[start:end] = piece
    return view[:end]


def _gzip_pieces(data: ReadableBuffer, piece_bytes: int) -> Iterator[bytes]:
    # Small chunks: zlib copies the bytes behind a member, which would be quadratic in the number of members.
    position = 0
    with memoryview(data) as view:
        while position < len(view):
            member = zlib.decompressobj(GZIP_WINDOW_BITS)
            while not member.eof:
                chunk = view[position : position + _GZIP_CHUNK_BYTES]
                if not chunk:
                    raise CorruptBatchError("gzip data ends within a member")
                try:
                    piece = member.decompress(chunk, piece_bytes)
                except zlib.error as error:
                    raise CorruptBatchError(f"not gzip data: {error}") from error
                yield piece
                position += len(chunk) - len(member.unconsumed_tail) - len(member.unused_data)


def xerial_pieces(pieces: Iterable[ReadableBuffer]) -> Iterator[ReadableBuffer]:
    """Yield the pieces in xerial's framing."""
    from cramjam import snappy

    yield _XERIAL_MAGIC + _XERIAL_VERSIONS
    for piece in pieces:
        with memoryview(piece) as view:
            for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
                block = memoryview(snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
                yield len(block).to_bytes(4, "big")
                yield block


def _decompress_snappy(data: ReadableBuffer, max_bytes: int) -> bytearray:
    plain = bytearray()
    for block in _snappy_blocks(data):
        plain += _open_snappy_block(block, max_bytes - len(plain), max_bytes)
    return plain


def _snappy_blocks(data: ReadableBuffer) -> Iterator[memoryview]:
    with memoryview(data) as view:
        if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
            yield view
            return
        if len(view) < _XERIAL_HEADER_SIZE:
            raise CorruptBatchError("snappy data ends within its header")
        position = _XERIAL_HEADER_SIZE
        while position < len(view):
            start = position + 4
            position = start + int.from_bytes(view[position:start], "big")
            if start > len(view) or position > len(view):
                raise CorruptBatchError("snappy data ends within a block")
            yield view[start:position]


def _snappy_size(block: memoryview) -> int:
    """Return the size that the block declares, which the library allocates. Raises CorruptBatchError."""
    import cramjam

    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"not snappy data: {error}") from error
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise CorruptBatchError(f"not snappy data: {len(block)} bytes cannot hold {size}")
    return size


def _open_snappy_block(block: memoryview, rest_bytes: int, max_bytes: int) -> memoryview:
    import cramjam

    if _snappy_size(block) > rest_bytes:
        raise OpenedBatchTooLargeError(max_bytes)
    try:
        return memoryview(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"not snappy data: {error}") from error


def _decompress_lz4(data: ReadableBuffer, max_bytes: int) -> bytearray:
    import lz4.frame

    decompressor = lz4.frame.LZ4FrameDecompressor()
    plain = bytearray()
    # The library allocates the most that it may return: a likely size first, then more if there is more.
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

    if not hasattr(_OF_THREAD, "zstd"):
        _OF_THREAD.zstd = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _OF_THREAD.zstd
    size = 0
    try:
        # The library heeds the limit, and allocates it, only for frames that do not declare their size.
        size = zstandard.frame_content_size(data)
        _check_size(size, max_bytes)
        likely_bytes = _ZSTD_LIKELY_RATIO * len(data)
        if size < 0 and likely_bytes < max_bytes:
            with contextlib.suppress(zstandard.ZstdError):
                return decompressor.decompress(data, max_output_size=likely_bytes, allow_extra_data=False)
        return decompressor.decompress(data, max_output_size=max(max_bytes, 1), allow_extra_data=False)
    except zstandard.ZstdError as error:
        # A truncated frame gives the same message, but the checksum of a batch all but rules that out.
        if size < 0 and "did not decompress full frame" in str(error):
            raise OpenedBatchTooLargeError(max_bytes) from error
        raise CorruptBatchError(f"not a zstd frame of at most {max_bytes} bytes: {error}") from error


# Piece by piece


def plain_limits(sections: Sequence[tuple[Codec, ReadableBuffer]], max_bytes: int) -> list[int]:
    """Return the limits to try for all sections together: the declared size, else a likely one, then up to `max_bytes`.

    So a charge is seldom much more than the plain bytes. Raises CorruptBatchError.
    """
    sizes = [_plain_size(codec, data) for codec, data in sections]
    likely_bytes = sum(
        _LIKELY_RATIO * len(data) if size is None else size for size, (_, data) in zip(sizes, sections, strict=True)
    )
    limits = []
    if None in sizes:
        likely_bytes = max(likely_bytes, _LEAST_LIMIT_BYTES)
        while likely_bytes < max_bytes:
            limits.append(likely_bytes)
            likely_bytes *= _LIMIT_GROWTH
    return [*limits, min(likely_bytes, max_bytes)]


def _plain_size(codec: Codec, data: ReadableBuffer) -> int | None:
    """Return the uncompressed size, None if the data do not declare it. Raises CorruptBatchError."""
    match codec:
        case Codec.NONE:
            return len(data)
        case Codec.SNAPPY:
            return sum(map(_snappy_size, _snappy_blocks(data)))
        case Codec.ZSTD:
            content, _ = _zstd_sizes(data)
            return None if content < 0 else content
        case Codec.GZIP | Codec.LZ4:
            return None


def plain_pieces(codec: Codec, data: ReadableBuffer, max_bytes: int) -> Iterator[ReadableBuffer]:
    """Yield the plain bytes in pieces. Raises CorruptBatchError, OpenedBatchTooLargeError beyond `max_bytes`."""
    size_bytes = 0
    for piece in _pieces(codec, data, max_bytes):
        size_bytes += len(piece)
        _check_size(size_bytes, max_bytes)
        yield piece


def opening_bytes(codec: Codec, start: ReadableBuffer, size_bytes: int, max_bytes: int) -> int:
    """Return the bound of the memory of `plain_pieces` for `size_bytes` of data, without the data.

    `start`: their first FRAME_HEADER_BYTES or more. Raises CorruptBatchError.
    """
    match codec:
        case Codec.NONE:
            return 2 * PIECE_BYTES
        case Codec.GZIP:
            return _GZIP_MEMORY_BYTES
        case Codec.SNAPPY:
            return min(_SNAPPY_MAX_RATIO * size_bytes, max_bytes)
        case Codec.LZ4:
            return _STREAM_MEMORY_BYTES
        case Codec.ZSTD:
            content, window = _zstd_sizes(start)
            if 0 <= content <= _ZSTD_SMALL_BYTES:
                return content
            return min(window, max_bytes) + _STREAM_MEMORY_BYTES


def _pieces(codec: Codec, data: ReadableBuffer, max_bytes: int) -> Iterator[ReadableBuffer]:
    match codec:
        case Codec.NONE:
            with memoryview(data) as view:
                for start in range(0, len(view), PIECE_BYTES):
                    yield bytes(view[start : start + PIECE_BYTES])
        case Codec.GZIP:
            yield from _gzip_pieces(data, PIECE_BYTES)
        case Codec.SNAPPY:
            for block in _snappy_blocks(data):
                yield _open_snappy_block(block, max_bytes, max_bytes)
        case Codec.LZ4:
            yield from _lz4_pieces(data)
        case Codec.ZSTD:
            content, _ = _zstd_sizes(data)
            _check_size(content, max_bytes)
            if 0 <= content <= _ZSTD_SMALL_BYTES:
                yield _decompress_zstd(data, max_bytes)
            else:
                yield from _zstd_pieces(data)


def _lz4_pieces(data: ReadableBuffer) -> Iterator[bytes]:
    import lz4.frame

    decompressor = lz4.frame.LZ4FrameDecompressor()
    position = 0
    with memoryview(data) as view:
        while not decompressor.eof:
            chunk = view[position : position + _LZ4_INPUT_BYTES] if decompressor.needs_input else b""
            if decompressor.needs_input and not chunk:
                raise CorruptBatchError("LZ4 data ends within its frame")
            position += len(chunk)
            try:
                yield decompressor.decompress(chunk, max_length=PIECE_BYTES)
            except RuntimeError as error:
                raise CorruptBatchError(f"not an LZ4 frame: {error}") from error
        if decompressor.unused_data or position < len(view):
            raise CorruptBatchError("bytes follow the LZ4 frame")


def _zstd_pieces(data: ReadableBuffer) -> Iterator[ReadableBuffer]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor().decompressobj()
    held = bytearray()
    position = 0
    try:
        with memoryview(data) as view:
            while not decompressor.eof and position < len(view):
                held += decompressor.decompress(view[position : position + _ZSTD_INPUT_BYTES])
                position += _ZSTD_INPUT_BYTES
                if len(held) >= PIECE_BYTES:
                    yield held
                    held = bytearray()
            if not decompressor.eof or decompressor.unused_data or position < len(view):
                raise CorruptBatchError("not one zstd frame: the data end within it, or go on behind it")
    except zstandard.ZstdError as error:
        raise CorruptBatchError(f"not a zstd frame: {error}") from error
    yield held


def _zstd_sizes(data: ReadableBuffer) -> tuple[int, int]:
    """Return the declared size of a frame, -1 if there is none, and its window."""
    import zstandard

    try:
        return zstandard.frame_content_size(data), zstandard.get_frame_parameters(data).window_size
    except zstandard.ZstdError as error:
        raise CorruptBatchError(f"not a zstd frame: {error}") from error
