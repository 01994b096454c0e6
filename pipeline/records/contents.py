"""Contents of batches, by which copies in different codecs are compared: frames (`batch_sums.py`) and plain records.

Functions block their thread until there is memory for an opened batch.
"""

from hashlib import blake2b

from crc32c import crc32c

from pipeline.errors import CorruptBatchError
from pipeline.records.batch import BatchHeader
from pipeline.records.batch_sums import PlainSum, frame_of
from pipeline.records.compression import ReadableBuffer
from pipeline.records.memory import OPENED_BATCHES
from pipeline.records.recompression import MAX_RECOMPRESSED_BYTES
from pipeline.records.reopening import payload_pieces, scan_memory


def plain_sum_of(batch: ReadableBuffer, header: BatchHeader) -> PlainSum | None:
    """Return the sum of a whole batch; None if it cannot be opened within MAX_RECOMPRESSED_BYTES.

    Raises MemoryExhaustedError.
    """
    size_bytes = crc = 0
    try:
        with OPENED_BATCHES.charged(scan_memory(batch, header, MAX_RECOMPRESSED_BYTES)):
            for piece in payload_pieces(batch, header, MAX_RECOMPRESSED_BYTES):
                size_bytes, crc = size_bytes + len(piece), crc32c(piece, crc)
    except CorruptBatchError:
        return None
    return PlainSum(size_bytes, crc)


def hash_of_contents(batch: ReadableBuffer, header: BatchHeader) -> bytes:
    """Return a cryptographic hash of the contents of a whole batch.

    Raises MemoryExhaustedError; CorruptBatchError for a batch that cannot be opened within MAX_RECOMPRESSED_BYTES.
    """
    found = blake2b(frame_of(header))
    with OPENED_BATCHES.charged(scan_memory(batch, header, MAX_RECOMPRESSED_BYTES)):
        for piece in payload_pieces(batch, header, MAX_RECOMPRESSED_BYTES):
            found.update(piece)
    return found.digest()
