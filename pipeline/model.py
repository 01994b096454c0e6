"""Nouns that every room shares: identifiers and small values without behaviour.

Identifiers are NewTypes, so that a type checker tells an offset from an epoch; at run time they are plain values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, NewType, Protocol

BrokerId = NewType("BrokerId", int)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)

MIN_INT64 = -(2**63)
MAX_INT64 = 2**63 - 1
NO_LEADER_EPOCH = LeaderEpoch(-1)
NO_BROKER_EPOCH = -1
"""The epoch of a broker that does not report one."""

BROKER_IDS = "/brokers/ids"
"""The znode of the live brokers, which brokers write and clients may read."""


class TopicPartition(NamedTuple):
    """A partition of a topic, ordered by topic, then number. A tuple, because one is looked up for each batch."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return Kafka's directory name of the partition, `topic-0`."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """The address of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


ANONYMOUS = "ANONYMOUS"
"""Name of the user of a connection that has not been authenticated."""


class SecurityProtocol(Enum):
    """Protection of the connections of a listener."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_encrypted(self) -> bool:
        """True if connections begin with a TLS handshake."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def is_sasl(self) -> bool:
        """True if clients authenticate by SASL before anything else."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoint:
    """A live broker as clients see it."""

    id: BrokerId
    address: HostPort
    """Address for other brokers."""
    rack: str | None = None
    epoch: int = NO_BROKER_EPOCH
    """The epoch of its registration (KIP-903)."""
    addresses: Mapping[str, HostPort] = field(default_factory=dict)
    """Addresses for clients, by the name of the listener. Empty if there is one listener."""

    def address_on(self, listener: str) -> HostPort | None:
        """Return the address for clients that came in on a listener of this name; None if it has none."""
        return self.addresses.get(listener) if self.addresses else self.address


class OpenFile(Protocol):
    """A file that stays open as long as it is referred to."""

    def fileno(self) -> int:
        """Return the descriptor, for sendfile."""


@dataclass(frozen=True, slots=True)
class FileRegion:
    """Bytes of an open file that go from the page cache to a socket without a copy in the process.

    A region holds its file open, so a segment that is deleted meanwhile can still be read to its end.
    """

    file: OpenFile
    position: int
    size: int

    def __len__(self) -> int:
        return self.size


class Clock(Protocol):
    """Wall clock: milliseconds since 1970 UTC. Passed in, so that tests and simulations can set it.

    The clock may be set back or forward at any time. It gives records their timestamps, and decides the age of records
    and committed offsets; waits, lags and sessions are measured in trio's time.
    """

    def __call__(self) -> int:
        """Return milliseconds since 1970 UTC."""
