"""Assignments of consumers, which the coordinator passes on without decoding. Pure.

An assignment is a version, then topics with their partitions, then bytes for the assignor (Kafka's
ConsumerProtocolAssignment); later versions add at the end only.
"""

import struct
from collections.abc import Iterator

from pipeline.errors import ProtocolError
from pipeline.model import TopicPartition

CONSUMER = "consumer"
"""Protocol type of groups of consumers."""


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions that are assigned to a member of a consumer group. Raises ProtocolError."""
    if not data:
        return ()
    try:
        return tuple(_partitions(data))
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"an assignment cannot be read: {error}") from error


def _partitions(data: bytes) -> Iterator[TopicPartition]:
    (topics,) = struct.unpack_from(">i", data, 2)
    position = 6
    for _ in range(topics):
        (size,) = struct.unpack_from(">h", data, position)
        (raw,) = struct.unpack_from(f">{size}s", data, position + 2)
        (count,) = struct.unpack_from(">i", data, position + 2 + size)
        position += 6 + size
        for index in struct.unpack_from(f">{count}i", data, position):
            yield TopicPartition(raw.decode(), index)
        position += 4 * count
