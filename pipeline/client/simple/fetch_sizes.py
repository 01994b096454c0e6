"""Sizes of fetches whose answer holds no whole batch, since the first one is larger than what was asked for. Pure.

Brokers since Kafka 0.10.1 send the first batch of a response whole (KIP-74). A batch of another partition of the
response that is too large comes cut, or not at all.
"""

from pipeline.protocol.connection import MAX_RESPONSE_BYTES
from pipeline.protocol.messages.fetch import READ_COMMITTED, PartitionData

MAX_FETCH_BYTES = MAX_RESPONSE_BYTES - (1 << 20)
"""Bound of the size of a fetch and of its growth: a client takes no larger answer."""
MAX_ANSWER_BYTES = 64 << 20
"""Bytes of all partitions of a leader that are asked for at once, unless one alone is larger."""

_LENGTH_START = 8
_LENGTH_END = 12


def grown_bytes(asked_offset: int, asked_bytes: int, data: PartitionData, isolation_level: int) -> int | None:
    """Return the size to ask for instead; None if the answer holds what there is, or the size is at its bound."""
    if asked_bytes >= MAX_FETCH_BYTES:
        return None
    view = data.records if isinstance(data.records, memoryview) else memoryview(b"")
    if len(view) == 0:
        end = data.last_stable_offset if isolation_level == READ_COMMITTED else data.high_watermark
        return min(2 * asked_bytes, MAX_FETCH_BYTES) if asked_offset < end else None
    whole_bytes = _declared_bytes(view)
    if whole_bytes is not None and whole_bytes <= len(view):
        return None
    return min(max(2 * asked_bytes, whole_bytes or 0), MAX_FETCH_BYTES)


def _declared_bytes(view: memoryview) -> int | None:
    """Return the size of the first batch by its own length field; None if the answer ends before that."""
    if len(view) < _LENGTH_END:
        return None
    return _LENGTH_END + int.from_bytes(view[_LENGTH_START:_LENGTH_END], "big", signed=True)
