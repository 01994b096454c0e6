import contextlib
import random
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import CorruptBatchError
from pipeline.records.compression import (
    FRAME_HEADER_BYTES,
    PIECE_BYTES,
    Codec,
    compress,
    decompress,
    opening_bytes,
    plain_pieces,
)

REAL_CODECS = [codec for codec in Codec if codec is not Codec.NONE]
BOMB_BYTES = 50_000_000


def _streamed_zstd(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary(max_size=500), repeat=st.integers(1, 1000))
def test_payloads_survive_each_codec(codec: Codec, data: bytes, repeat: int) -> None:
    plain = data * repeat
    assert decompress(codec, compress(codec, memoryview(plain)), len(plain)) == plain


@pytest.mark.parametrize("codec", Codec)
def test_a_payload_of_one_byte_over_the_limit_is_refused(codec: Codec) -> None:
    plain = b"0123456789" * 20_000
    assert decompress(codec, compress(codec, plain), len(plain)) == plain
    with pytest.raises(CorruptBatchError):
        decompress(codec, compress(codec, plain), len(plain) - 1)


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        (Codec.GZIP, zlib.compress(bytes(BOMB_BYTES), wbits=31)),
        (Codec.GZIP, zlib.compress(bytes(1000), wbits=31) * 2000),
        (Codec.SNAPPY, compress(Codec.SNAPPY, bytes(BOMB_BYTES))),
        (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(BOMB_BYTES)))),
        (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\x00"),
        (Codec.LZ4, compress(Codec.LZ4, bytes(BOMB_BYTES))),
        (Codec.LZ4, lz4.frame.compress(bytes(BOMB_BYTES), store_size=True)),
        (Codec.ZSTD, zstandard.ZstdCompressor().compress(bytes(BOMB_BYTES))),
        (Codec.ZSTD, _streamed_zstd(bytes(BOMB_BYTES))),
    ],
)
def test_bombs_are_refused(codec: Codec, bomb: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        decompress(codec, bomb, 1_000_000)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_truncated_data_raises_one_error(codec: Codec) -> None:
    plain = b"".join(b"line %d\n" % number for number in range(100))
    packed = bytes(compress(codec, plain))
    for size in range(1, len(packed)):
        try:
            assert decompress(codec, packed[:size], 10_000) == b""
        except CorruptBatchError:
            continue
        assert codec is Codec.SNAPPY
        assert size == 16


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_damaged_data_raises_one_error(codec: Codec) -> None:
    plain = b"".join(b"line %d\n" % number for number in range(100))
    source = random.Random(1)
    for _ in range(2000):
        packed = bytearray(compress(codec, plain))
        for _ in range(source.randint(1, 4)):
            packed[source.randrange(len(packed))] = source.randrange(256)
        with contextlib.suppress(CorruptBatchError):
            assert len(decompress(codec, packed, 10_000)) <= 10_000


@pytest.mark.parametrize("codec", REAL_CODECS)
@given(data=st.binary(max_size=100))
def test_random_data_raises_one_error(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(CorruptBatchError):
        decompress(codec, data, 10_000)


def test_gzip_of_several_members() -> None:
    assert decompress(Codec.GZIP, zlib.compress(b"one", wbits=31) + zlib.compress(b"two", wbits=31), 6) == b"onetwo"
    with pytest.raises(CorruptBatchError):
        decompress(Codec.GZIP, zlib.compress(b"one", wbits=31) + b"tail", 100)


def test_gzip_of_very_many_members_takes_linear_time() -> None:
    assert decompress(Codec.GZIP, zlib.compress(b"", wbits=31) * 30_000, 10) == b""


def test_raw_snappy_is_read() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"abc" * 100)), 300) == b"abc" * 100


def test_snappy_is_written_in_blocks_as_the_java_library_does() -> None:
    packed = bytes(compress(Codec.SNAPPY, b"a" * 40_000))
    assert packed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    size = int.from_bytes(packed[16:20], "big")
    assert len(bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + size]))) == 32 * 1024


def test_lz4_blocks_are_independent_and_the_frame_has_no_size() -> None:
    flags = bytes(compress(Codec.LZ4, b"a" * 200_000))[4]
    assert flags & 0x20, "block independence"
    assert not flags & 0x08, "content size"


@pytest.mark.parametrize("packed", [lz4.frame.compress(b"abc") + b"x", lz4.frame.compress(b"abc") * 2])
def test_bytes_behind_the_lz4_frame_are_refused(packed: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        decompress(Codec.LZ4, packed, 100)


def test_linked_lz4_blocks_and_streamed_zstd_are_read() -> None:
    plain = b"0123456789" * 50_000
    assert decompress(Codec.LZ4, lz4.frame.compress(plain, block_linked=True), len(plain)) == plain
    assert decompress(Codec.ZSTD, _streamed_zstd(plain), len(plain)) == plain


def _joined(codec: Codec, data: bytes, max_bytes: int) -> bytes:
    return b"".join(plain_pieces(codec, data, max_bytes))


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary(max_size=500), repeat=st.integers(1, 3000))
def test_pieces_are_together_the_whole(codec: Codec, data: bytes, repeat: int) -> None:
    plain = data * repeat
    packed = bytes(compress(codec, plain))
    assert _joined(codec, packed, len(plain)) == plain
    if plain:
        with pytest.raises(CorruptBatchError):
            _joined(codec, packed, len(plain) - 1)


@pytest.mark.parametrize("packed", [_streamed_zstd(b"line\n" * 300_000), zlib.compress(b"a" * 999, wbits=31) * 50])
def test_pieces_of_frames_that_other_libraries_write(packed: bytes) -> None:
    codec = Codec.GZIP if packed[:2] == b"\x1f\x8b" else Codec.ZSTD
    assert _joined(codec, packed, 1 << 30) == decompress(codec, packed, 1 << 30)


@pytest.mark.parametrize("codec", REAL_CODECS)
@given(data=st.data())
def test_pieces_refuse_what_the_whole_refuses(codec: Codec, data: st.DataObject) -> None:
    plain = b"0123456789" * 300_000
    packed = bytearray(compress(codec, plain))
    position = data.draw(st.integers(0, len(packed) - 1))
    packed[position : position + 1] = data.draw(st.binary(max_size=3))
    results = []
    for opened in (decompress, _joined):
        try:
            results.append(bytes(opened(codec, bytes(packed), len(plain) + 100)))
        except CorruptBatchError:
            results.append(b"refused")
    assert results[0] == results[1]


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_pieces_of_a_bomb_stay_within_the_memory_that_is_told_beforehand(codec: Codec) -> None:
    packed = bytes(compress(codec, bytes(BOMB_BYTES)))
    told = opening_bytes(codec, packed[:FRAME_HEADER_BYTES], len(packed), BOMB_BYTES)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        size = sum(map(len, plain_pieces(codec, packed, BOMB_BYTES)))
        used = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert size == BOMB_BYTES
    assert used <= told + 2 * PIECE_BYTES
    assert told <= 64 << 20
