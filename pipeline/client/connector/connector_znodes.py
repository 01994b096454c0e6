"""The znodes of a consumer group by ZooKeeper, in Kafka's layout (0.7, and 0.8 to 1.1 for the JSON). Pure.

    /consumers/<group>/ids/<consumer>                   ephemeral: topics or topic filter, with numbers of streams
    /consumers/<group>/owners/<topic>/<partition>       ephemeral: the stream that reads the partition
    /consumers/<group>/offsets/<topic>/<partition>      the next offset to consume, as text

`decode` and `decode_offset` raise only `CoordinationError`, with the znode's path.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, Field

from pipeline.client.streams.topic_filter import BlackList, TopicFilter, WhiteList
from pipeline.coordination.znodes import from_json, to_json
from pipeline.errors import ConfigurationError, CoordinationError
from pipeline.model import MAX_INT64, TopicPartition

CONSUMERS = "/consumers"
MAX_STREAMS = 10_000
BY_BROKER = "by_broker"
"""Mark of a consumer that shares by Algorithm 1, with partitions sorted by broker. Kafka's consumers have no mark."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupPaths:
    """Paths of one group."""

    group: str

    @property
    def ids(self) -> str:
        """The parent of the consumers."""
        return f"{CONSUMERS}/{self.group}/ids"

    def id(self, consumer: str) -> str:
        """The registration of one consumer."""
        return f"{self.ids}/{consumer}"

    def owners(self, topic: str) -> str:
        """The parent of the owners of a topic's partitions."""
        return f"{CONSUMERS}/{self.group}/owners/{topic}"

    def owner(self, topic_partition: TopicPartition) -> str:
        """The owner of a partition."""
        return f"{self.owners(topic_partition.topic)}/{topic_partition.partition}"

    def offsets(self, topic: str) -> str:
        """The parent of the offsets of a topic."""
        return f"{CONSUMERS}/{self.group}/offsets/{topic}"

    def offset(self, topic_partition: TopicPartition) -> str:
        """The stored offset of a partition."""
        return f"{self.offsets(topic_partition.topic)}/{topic_partition.partition}"


class GroupStream(NamedTuple):
    """A stream of a consumer, as owner znodes name it: Kafka's consumer thread id."""

    consumer: str
    number: int

    def __str__(self) -> str:
        """Return `<consumer>-<number>`."""
        return f"{self.consumer}-{self.number}"


class _ConsumerJson(BaseModel):
    version: int
    subscription: dict[str, Annotated[int, Field(ge=1, le=MAX_STREAMS)]]
    pattern: Literal["static", "white_list", "black_list"]
    timestamp: int = -1
    sharing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRegistration:
    """A live consumer: its topics, or its filter, with the number of streams."""

    streams: Mapping[str, int]
    """Numbers of streams by topic; with a filter the number of all streams by the filter's text."""
    topic_filter: TopicFilter | None = None
    timestamp_ms: int = -1
    shares_by_broker: bool = True
    """True if the consumer shares by Algorithm 1, with partitions sorted by broker; False for Kafka's consumers."""

    def streams_of(self, topic: str) -> int:
        """Return the number of streams that carry a topic, 0 if the consumer does not read it."""
        if self.topic_filter is None:
            return self.streams.get(topic, 0)
        return sum(self.streams.values()) if self.topic_filter.allows(topic) else 0

    def encode(self) -> bytes:
        """JSON version 1, with a key of ours, which Kafka's consumers ignore."""
        pattern = {type(None): "static", WhiteList: "white_list", BlackList: "black_list"}[type(self.topic_filter)]
        fields = {
            "version": 1,
            "subscription": dict(self.streams),
            "pattern": pattern,
            "timestamp": str(self.timestamp_ms),
        }
        return to_json(fields | ({"sharing": BY_BROKER} if self.shares_by_broker else {}))

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """JSON version 1."""
        found = from_json(path, data, _ConsumerJson)
        topic_filter: TopicFilter | None = None
        if found.pattern != "static":
            if len(found.subscription) != 1:
                raise CoordinationError(path, f"has {len(found.subscription)} topic filters instead of one")
            kind = WhiteList if found.pattern == "white_list" else BlackList
            try:
                topic_filter = kind(next(iter(found.subscription)))
            except ConfigurationError as error:
                raise CoordinationError(path, f"has a topic filter that cannot be used: {error.reason}") from error
        return cls(
            streams=found.subscription,
            topic_filter=topic_filter,
            timestamp_ms=found.timestamp,
            shares_by_broker=found.sharing == BY_BROKER,
        )


def encode_offset(offset: int) -> bytes:
    """Encode the next offset to consume."""
    return b"%d" % offset


def decode_offset(path: str, data: bytes) -> int:
    """Decode the next offset to consume."""
    try:
        text = data.decode("ascii").strip()
        offset = int(text) if len(text) <= len(str(MAX_INT64)) else -1
    except ValueError:
        offset = -1
    if not 0 <= offset <= MAX_INT64:
        raise CoordinationError(path, f"holds no offset but {data[:100]!r}")
    return offset
