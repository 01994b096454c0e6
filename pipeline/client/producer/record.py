"""Records as a producer takes them, and as it gives back those that were not delivered. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.model import TopicPartition
from pipeline.records.builder import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRecord:
    """A record before it is encoded: what `send` was given. None for a partition or a time that was not given."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[Header] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredRecord:
    """A record that was not acknowledged. Key and value are encoded, the headers are all that it was sent with.

    `error` is the DeliveryError of a record that was given up. A record without one is still being sent.
    """

    topic_partition: TopicPartition
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    error: Exception | None
