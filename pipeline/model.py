"""The nouns that every room shares: identifiers and small values, without behaviour of their own.

Identifiers are NewTypes so that a checker tells an offset from an epoch; at run time they are what they wrap.
"""

from dataclasses import dataclass
from typing import NamedTuple, NewType, Protocol

BrokerId = NewType("BrokerId", int)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
NO_LEADER_EPOCH = LeaderEpoch(-1)
NO_BROKER_EPOCH = -1
"""Of a broker that does not tell its epoch."""

BROKER_IDS = "/brokers/ids"
"""The znode of the live brokers, which brokers write and clients may read."""


class TopicPartition(NamedTuple):
    """One partition of one topic. Ordered by topic, then number. A tuple, because one is looked up for each batch."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Kafka's directory name of the partition, `topic-0`."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """`host:port`, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoint:
    """A live broker as clients see it."""

    id: BrokerId
    address: HostPort
    rack: str | None = None
    epoch: int = NO_BROKER_EPOCH
    """Of its registration (KIP-903)."""


class OpenFile(Protocol):
    """A file that stays open as long as something refers to it."""

    def fileno(self) -> int:
        """The descriptor, for sendfile."""


@dataclass(frozen=True, slots=True)
class FileRegion:
    """Bytes of an open file that travel from the page cache to a socket without being copied into the process.

    Holding the region holds the file open, so a segment that is deleted meanwhile is still readable to its end.
    """

    file: OpenFile
    position: int
    size: int

    def __len__(self) -> int:
        """Bytes in the region."""
        return self.size


class Clock(Protocol):
    """Wall clock: milliseconds since 1970 UTC. Passed in, so that tests and simulations turn it themselves.

    The clock may be set back or forward at any time. It gives records their times, and decides how old records and
    committed offsets are; waits, lags and sessions are measured in trio's time.
    """

    def __call__(self) -> int:
        """Milliseconds since 1970 UTC."""
