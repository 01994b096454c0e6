"""Compression in pieces: what it makes is opened by everybody, and it takes little memory at any level."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records.compression import Codec, decompress
from pipeline.records.piecewise_compression import compress_pieces

REAL_CODECS = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.mark.parametrize("codec", Codec)
@given(parts=st.lists(st.tuples(st.binary(max_size=50), st.integers(0, 2000)), max_size=5))
def test_payloads_compressed_in_pieces_are_opened_as_a_whole(codec: Codec, parts: list[tuple[bytes, int]]) -> None:
    pieces = [data * count for data, count in parts]
    plain = b"".join(pieces)
    packed = b"".join(compress_pieces(codec, pieces, len(plain)))
    assert decompress(codec, packed, len(plain)) == plain


PEAK = """
import random, resource, sys
from pipeline.records.compression import PIECE_BYTES, Codec
from pipeline.records.piecewise_compression import compress_pieces, compressing_bytes
codec, level, pieces = Codec[sys.argv[1]], int(sys.argv[2]), 256
piece = random.Random(1).randbytes(PIECE_BYTES)
size = pieces * PIECE_BYTES
list(compress_pieces(codec, [bytes(1000)], 1000, level))
before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for packed in compress_pieces(codec, (bytes(piece) for _ in range(pieces)), size, level):
    pass
used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) << 10
print(used, compressing_bytes(codec, size, level))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("codec", "level"), [(Codec.GZIP, 1), (Codec.SNAPPY, 0), (Codec.LZ4, 12), (Codec.ZSTD, 3), (Codec.ZSTD, 22)]
)
def test_compressing_stays_within_the_memory_that_is_told_beforehand(codec: Codec, level: int) -> None:
    command = [sys.executable, "-c", PEAK, codec.name, str(level)]
    used, told = map(int, subprocess.run(command, check=True, capture_output=True, timeout=400).stdout.split())
    assert used <= told + (2 << 20), "the interpreter itself may take some, too"
    assert told < 24 << 20
