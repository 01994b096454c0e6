"""Contents of batches, by which copies in different codecs are compared. Blocks its thread.

Contents are the plain records, and the header without what depends on the codec (codec bits, length, checksum) or on
the cluster (leader epoch).
"""

import struct
from hashlib import blake2b

from pipeline.records.batch import BatchHeader
from pipeline.records.compression import ReadableBuffer
from pipeline.records.memory import OPENED_BATCHES
from pipeline.records.reopening import payload_pieces, scan_memory

_CODEC_MASK = 0x07
_FRAME = struct.Struct(">qhiqqqhii")


def frame_of(header: BatchHeader) -> bytes:
    """Return the fields of a header that recompression and copying keep."""
    return _FRAME.pack(
        header.base_offset,
        header.attributes & ~_CODEC_MASK,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )


def hash_of_contents(batch: ReadableBuffer, header: BatchHeader, max_bytes: int) -> bytes:
    """Return a cryptographic hash of a batch's contents, which may have `max_bytes` of plain records.

    Raises CorruptBatchError for a batch that cannot be opened, MemoryExhaustedError.
    """
    found = blake2b(frame_of(header))
    held_bytes = scan_memory(batch, header, max_bytes)
    with OPENED_BATCHES.charged(held_bytes):
        for piece in payload_pieces(batch, header, max_bytes):
            found.update(piece)
    return found.digest()
