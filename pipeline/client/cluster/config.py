"""Declares the settings of clients, producers and consumers: frozen values, checked once when they are built.

Fields bear the names of Kafka's client settings with `_` for `.`; an error names the key in Kafka's spelling. Every
number has a lower and an upper bound, so that no wait is endless and no buffer unbounded. The docstring under a field
is its description in docs/client/.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Annotated, get_type_hints

from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity
from pipeline.protocol.messages.produce import ACKS_ALL
from pipeline.protocol.primitives import MAX_STRING_BYTES
from pipeline.records.builder import Header, encode_headers
from pipeline.records.compression import Codec
from pipeline.records.memory import MAX_OPENED_BYTES, MIN_OPENED_BYTES

MAX_TIMEOUT_MS = 24 * 3600 * 1000
MAX_BUFFER_BYTES = 8 * 1024**3
MAX_FIELD_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number."""

    lowest: int
    highest: int
    or_none: bool = False


_LEVELS: dict[Codec, tuple[range, ...]] = {
    Codec.GZIP: (range(1, 10), range(-1, 0)),
    Codec.LZ4: (range(1, 18),),
    Codec.ZSTD: (range(-131_072, 23),),
}
"""Levels of the codecs that have any, as Kafka bounds them (KIP-780)."""

Timeout = Annotated[int, Between(1, MAX_TIMEOUT_MS)]


class Acks(IntEnum):
    """Replicas that must have a batch before it counts as delivered."""

    NONE = 0
    LEADER = 1
    ALL = ACKS_ALL


class OffsetReset(Enum):
    """Offset at which a consumer continues if its own offset is no longer in the log."""

    NONE = "none"
    EARLIEST = "earliest"
    LATEST = "latest"


class IsolationLevel(IntEnum):
    """Records that a consumer fetches (KIP-98)."""

    READ_UNCOMMITTED = 0
    """All records up to the high watermark."""
    READ_COMMITTED = 1
    """Records before the first transaction that is still open, without those of aborted transactions."""


def bounds(kind: type) -> dict[str, Between]:
    """Return the bounds of each number of a settings class."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: bound for name, hint in hints.items() for bound in getattr(hint, "__metadata__", ())}


def check_bounds(settings: object, **lower_bounds: int) -> None:
    """Raise ConfigurationError for a number out of bounds. `lower_bounds` depend on other settings."""
    for name, bound in bounds(type(settings)).items():
        value, lowest, highest = getattr(settings, name), lower_bounds.get(name, bound.lowest), bound.highest
        if bound.or_none and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ConfigurationError(name.replace("_", "."), f"is {value!r}, must be from {lowest} to {highest}")


def require_kinds(settings: object, kinds: dict[str, type | tuple[type, ...]]) -> None:
    """Raise ConfigurationError for a value of another kind."""
    for name, kind in kinds.items():
        value = getattr(settings, name)
        if not isinstance(value, kind):
            one = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
            raise ConfigurationError(name.replace("_", "."), f"is {value!r}, must be a {one}")


def _take_members(settings: object, kinds: dict[str, type[Enum]]) -> None:
    """Take the name or the value of a member of an enumeration, like "zstd", "earliest" or -1, for the member."""
    for name, kind in kinds.items():
        value = getattr(settings, name)
        named = {member.name.lower(): member for member in kind}
        try:
            member = named[value] if isinstance(value, str) and value in named else kind(value)
        except ValueError:
            values = ", ".join(map(repr, named))
            raise ConfigurationError(name.replace("_", "."), f"is {value!r}, must be one of {values}") from None
        object.__setattr__(settings, name, member)


def _is_client_id(text: str) -> bool:
    try:
        return len(text.encode()) <= MAX_STRING_BYTES
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of a client of one cluster."""

    bootstrap: tuple[HostPort, ...] = ()
    """Addresses of brokers, see `parse_addresses`. Empty if `open_cluster` discovers the brokers in another way."""
    client_id: str = "pipeline"
    """Name of the program in the brokers' quotas and logs."""
    request_timeout_ms: Timeout = 30_000
    """Time in ms to wait for a broker's answer before the request is tried again."""
    default_api_timeout_ms: Timeout = 60_000
    """Time in ms that a call with all its retries may take, unless the call is given a timeout."""
    retry_backoff_ms: Annotated[int, Between(1, 60_000)] = 100
    """Time in ms to wait before the first retry. The time doubles with every further retry."""
    retry_backoff_max_ms: Annotated[int, Between(1, 600_000)] = 1_000
    """Longest time in ms to wait before a retry, at least `retry_backoff_ms`."""
    metadata_max_age_ms: Timeout = 300_000
    """Age in ms at which the metadata of the cluster is requested again."""
    security: ClientSecurity = OPEN_SECURITY
    """Protection of the connections: `ClientSecurity.from_settings({"security.protocol": "SASL_SSL", ...})`."""
    allow_auto_create_topics: bool = False
    """True if a broker with `auto.create.topics.enable` may create the topics that the program asks for."""

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        require_kinds(self, {"client_id": str, "bootstrap": (tuple, list), "security": ClientSecurity})
        require_kinds(self, {"allow_auto_create_topics": bool})
        if not all(isinstance(address, HostPort) for address in self.bootstrap):
            raise ConfigurationError("bootstrap", f"is {self.bootstrap!r}, must hold addresses, see `parse_addresses`")
        if not _is_client_id(self.client_id):
            raise ConfigurationError("client.id", f"must be text of at most {MAX_STRING_BYTES} bytes")
        check_bounds(self, retry_backoff_max_ms=self.retry_backoff_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of a producer: batches, and their delivery."""

    linger_ms: Annotated[int, Between(0, 600_000)] = 5
    """Time in ms that a batch waits for more records before it is sent. Raise it for larger batches."""
    batch_size: Annotated[int, Between(1, 256 * 1024 * 1024)] = 64 * 1024
    """Size in bytes, before compression, at which a batch is sent without waiting."""
    buffer_memory: Annotated[int, Between(1, MAX_BUFFER_BYTES)] = 32 * 1024 * 1024
    """Memory in bytes for undelivered records, at least `batch_size`."""
    max_request_size: Annotated[int, Between(1024, MAX_FIELD_BYTES)] = 1024 * 1024
    """Maximum size in bytes of a request, and of a batch or a record before compression."""
    max_block_ms: Annotated[int, Between(0, MAX_TIMEOUT_MS)] = 60_000
    """Time in ms that `send` waits for metadata and for memory, together."""
    max_in_flight: Annotated[int, Between(1, 100)] = 5
    """Maximum number of unanswered requests to one broker, of which at most one holds a batch of a partition. Kafka's
    `max.in.flight.requests.per.connection`."""
    acks: Acks = Acks.ALL
    """Replicas that must have a batch before it counts as delivered. `Acks.NONE` and `Acks.LEADER` need
    `idempotence=False`."""
    compression: Codec = Codec.NONE
    """Codec of the batches. Kafka's `compression.type`."""
    compression_level: Annotated[int | None, Between(-131_072, 22, or_none=True)] = None
    """Level of the codec: `GZIP` 1 to 9 or -1 (its default), `LZ4` 1 to 17 (9 is the fast level), `ZSTD` -131072 to 22.
    None takes Kafka's default: -1, 9 and 3. The other codecs have no levels. Kafka's `compression.gzip.level`,
    `compression.lz4.level` and `compression.zstd.level`."""
    request_timeout_ms: Timeout = 30_000
    """Time in ms to wait for a broker's answer before the request is tried again."""
    delivery_timeout_ms: Annotated[int, Between(0, MAX_TIMEOUT_MS)] = 120_000
    """Time in ms after which an undelivered record fails, at least `linger_ms`."""
    retries: Annotated[int, Between(0, MAX_FIELD_BYTES)] = MAX_FIELD_BYTES
    """Number of times that a batch is sent again before it fails, within `delivery_timeout_ms`. 0 needs
    `idempotence=False`."""
    idempotence: bool = True
    """True if retries neither duplicate nor reorder records. Kafka's `enable.idempotence`."""
    record_headers: tuple[Header, ...] = ()
    """Headers that are added to every record. An audited producer sets them. Kafka has no such setting."""
    window_ms: Annotated[int | None, Between(1, MAX_TIMEOUT_MS * 366, or_none=True)] = None
    """Length in ms of windows of time; no batch holds records of two windows. An audited producer sets it. Kafka
    has no such setting."""
    is_counted: bool = False
    """True if the producer reports its batches to the audit, and requests a producer id that shows it. An audited
    producer sets it. Kafka has no such setting."""

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        _take_members(self, {"acks": Acks, "compression": Codec})
        require_kinds(self, {"idempotence": bool, "is_counted": bool})
        try:
            encode_headers(self.record_headers)
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError("record.headers", f"is {self.record_headers!r}: {error}") from error
        check_bounds(self, buffer_memory=self.batch_size, delivery_timeout_ms=self.linger_ms)
        if self.idempotence and self.acks is not Acks.ALL:
            raise ConfigurationError("enable.idempotence", "needs acks=all; turn it off to use acks 0 or 1")
        if self.idempotence and not self.retries:
            raise ConfigurationError("enable.idempotence", "needs retries; turn it off to use retries=0")
        levels = _LEVELS.get(self.compression, ())
        if self.compression_level is not None and not any(self.compression_level in each for each in levels):
            name = self.compression.name.lower()
            may_be = " or ".join(f"from {each[0]} to {each[-1]}" if len(each) > 1 else str(each[0]) for each in levels)
            reason = f"must be {may_be}" if levels else "has no level"
            raise ConfigurationError(f"compression.{name}.level", f"is {self.compression_level}: {name} {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of a consumer: how much it fetches ahead."""

    max_wait_ms: Annotated[int, Between(0, 600_000)] = 500
    """Time in ms after which a broker answers a Fetch request even with fewer than `min_bytes`."""
    min_bytes: Annotated[int, Between(0, MAX_FIELD_BYTES)] = 1
    """Bytes that a broker waits for before it answers a Fetch request."""
    max_bytes: Annotated[int, Between(1, MAX_FIELD_BYTES)] = 16 * 1024 * 1024
    """Bytes of a backlog that wait to be polled, for each broker, and bytes that are on their way meanwhile. As many
    again for partitions without backlog."""
    max_partition_bytes: Annotated[int, Between(1, MAX_FIELD_BYTES)] = 4 * 1024 * 1024
    """Maximum bytes of one partition in a Fetch response."""
    max_in_flight: Annotated[int, Between(1, 100)] = 1
    """Maximum number of Fetch requests to one broker that share its partitions with a backlog, each on a connection of
    its own. More than four are sent only to a broker that is far away: 10 ms or more there and back."""
    max_opened_bytes: Annotated[int, Between(1, MAX_OPENED_BYTES)] = MIN_OPENED_BYTES
    """Maximum size in bytes of one decompressed batch in `records()`. A larger batch raises PartitionBatchError."""
    auto_offset_reset: OffsetReset = OffsetReset.NONE
    """Offset at which the consumer continues if its own offset is no longer in the log. `OffsetReset.NONE` raises
    PartitionOffsetOutOfRangeError instead. If the log was truncated below the offset, both others continue at the end
    of the truncated log, and `OffsetReset.NONE` raises PartitionTruncatedError."""
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    """Records to read. `IsolationLevel.READ_COMMITTED` stops before the first open transaction, and leaves out records
    of aborted ones. Only whole batches (`poll_batches`, `batches()`) have them; `aborted` names the transactions."""

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        _take_members(self, {"auto_offset_reset": OffsetReset, "isolation_level": IsolationLevel})
        check_bounds(self)
