"""A record as consumers return it."""

from typing import NamedTuple

from pipeline.model import TopicPartition
from pipeline.records.builder import Header


class ConsumerRecord(NamedTuple):
    """A record and its place. A tuple, because a process makes millions of them."""

    topic_partition: TopicPartition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
