"""Compression of a payload piece by piece, in the framings of `compression`: neither side is in memory as a whole.

Invariant: the memory of a compressor is known beforehand (`compressing_bytes`), and is small at any level. With zstd
window and tables are those of a payload of ZSTD_SOURCE_BYTES: a higher level does not look further back.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pipeline.records.compression import (
    GZIP_WINDOW_BITS,
    LZ4_FAST_LEVEL,
    PIECE_BYTES,
    ZSTD_USUAL_LEVEL,
    Codec,
    ReadableBuffer,
    xerial_pieces,
)

if TYPE_CHECKING:
    import zstandard

ZSTD_SOURCE_BYTES = 1 << 20
_COMPRESSOR_MEMORY_BYTES = 1 << 20
_ZSTD_BLOCK_BYTES = 128 << 10
_PIECES_HELD = 4
"""A piece, its compressed form, and a copy of each."""


def compress_pieces(
    codec: Codec, pieces: Iterable[ReadableBuffer], size_bytes: int, level: int | None = None
) -> Iterator[ReadableBuffer]:
    """Yield the pieces, `size_bytes` in all, in the codec's framing; some may be empty. Levels as in `compress`."""
    match codec:
        case Codec.NONE:
            yield from pieces
        case Codec.GZIP:
            gzip = zlib.compressobj(-1 if level is None else level, wbits=GZIP_WINDOW_BITS)
            yield from map(gzip.compress, pieces)
            yield gzip.flush()
        case Codec.SNAPPY:
            yield from xerial_pieces(pieces)
        case Codec.LZ4:
            yield from _lz4_pieces(pieces, level)
        case Codec.ZSTD:
            import zstandard

            parameters = _zstd_parameters(level, size_bytes)
            zstd = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=size_bytes)
            yield from map(zstd.compress, pieces)
            yield zstd.flush()


def compressing_bytes(codec: Codec, size_bytes: int, level: int | None = None) -> int:
    """Return a bound of the memory of `compress_pieces`, without the result and the pieces of PIECE_BYTES."""
    compressor_bytes = _COMPRESSOR_MEMORY_BYTES
    if codec is Codec.ZSTD:
        parameters = _zstd_parameters(level, size_bytes)
        buffers_bytes = (1 << parameters.window_log) + 2 * _ZSTD_BLOCK_BYTES
        compressor_bytes += parameters.estimated_compression_context_size() + buffers_bytes
    return compressor_bytes + _PIECES_HELD * PIECE_BYTES


def _lz4_pieces(pieces: Iterable[ReadableBuffer], level: int | None) -> Iterator[ReadableBuffer]:
    import lz4.frame

    compressor = lz4.frame.LZ4FrameCompressor(
        compression_level=0 if level in {None, LZ4_FAST_LEVEL} else level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
    )
    yield compressor.begin()
    yield from map(compressor.compress, pieces)
    yield compressor.flush()


def _zstd_parameters(level: int | None, size_bytes: int) -> "zstandard.ZstdCompressionParameters":
    import zstandard

    return zstandard.ZstdCompressionParameters.from_level(
        ZSTD_USUAL_LEVEL if level is None else level, source_size=max(1, min(size_bytes, ZSTD_SOURCE_BYTES))
    )
