"""Settings of cluster, producer and consumer: frozen values, checked once when they are built.

Fields bear the names of Kafka's client settings with `_` for `.`; an error names the key in Kafka's spelling. Every
setting has a lower and an upper bound, so that no wait is endless and no buffer unbounded.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum

from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.protocol.messages.produce import ACKS_ALL
from pipeline.protocol.primitives import MAX_STRING_BYTES
from pipeline.records.builder import Header, encode_headers
from pipeline.records.compression import Codec
from pipeline.records.memory import MAX_OPENED_BYTES, MIN_OPENED_BYTES

MAX_TIMEOUT_MS = 24 * 3600 * 1000
MAX_BUFFER_BYTES = 8 * 1024**3
MAX_FIELD_BYTES = 2**31 - 1


class Acks(IntEnum):
    """Who must have a batch before it counts as delivered."""

    NONE = 0
    LEADER = 1
    ALL = ACKS_ALL


class OffsetReset(Enum):
    """Where a consumer goes on when the offset it asks for is not in the log any more."""

    NONE = "none"
    EARLIEST = "earliest"
    LATEST = "latest"


def _require_between(settings: object, bounds: dict[str, tuple[int, int]]) -> None:
    for name, (lowest, highest) in bounds.items():
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ConfigurationError(name.replace("_", "."), f"is {value!r}, must be from {lowest} to {highest}")


def _require_kinds(settings: object, kinds: dict[str, type | tuple[type, ...]]) -> None:
    for name, kind in kinds.items():
        value = getattr(settings, name)
        if not isinstance(value, kind):
            one = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
            raise ConfigurationError(name.replace("_", "."), f"is {value!r}, must be a {one}")


def _take_members(settings: object, kinds: dict[str, type[Enum]]) -> None:
    """Take the value of a member of an enumeration, like -1 or "earliest", for the member."""
    for name, kind in kinds.items():
        value = getattr(settings, name)
        try:
            object.__setattr__(settings, name, kind(value))
        except ValueError:
            values = ", ".join(repr(member.value) for member in kind)
            raise ConfigurationError(name.replace("_", "."), f"is {value!r}, must be one of {values}") from None


def _is_client_id(text: str) -> bool:
    try:
        return len(text.encode()) <= MAX_STRING_BYTES
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How to reach a cluster. `bootstrap` may be empty where another discovery is given to `open_cluster`.

    With `allow_auto_create_topics` a broker that has `auto.create.topics.enable` creates the topics that are asked for.
    """

    bootstrap: tuple[HostPort, ...] = ()
    client_id: str = "pipeline"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    allow_auto_create_topics: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        _require_kinds(self, {"client_id": str, "bootstrap": (tuple, list), "allow_auto_create_topics": bool})
        if not all(isinstance(address, HostPort) for address in self.bootstrap):
            raise ConfigurationError("bootstrap", f"is {self.bootstrap!r}, must hold addresses, see `parse_addresses`")
        if not _is_client_id(self.client_id):
            raise ConfigurationError("client.id", f"must be text of at most {MAX_STRING_BYTES} bytes")
        _require_between(
            self,
            {
                "request_timeout_ms": (1, MAX_TIMEOUT_MS),
                "default_api_timeout_ms": (1, MAX_TIMEOUT_MS),
                "retry_backoff_ms": (1, 60_000),
                "retry_backoff_max_ms": (self.retry_backoff_ms, 600_000),
                "metadata_max_age_ms": (1, MAX_TIMEOUT_MS),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How records become batches and how hard delivery is tried.

    `batch_size` counts bytes before compression. `max_in_flight` counts requests under way to one broker. With
    `window_ms` no batch holds records of two windows. `record_headers` are added to every record.
    """

    linger_ms: int = 5
    batch_size: int = 64 * 1024
    buffer_memory: int = 32 * 1024 * 1024
    max_request_size: int = 1024 * 1024
    max_block_ms: int = 60_000
    max_in_flight: int = 5
    acks: Acks = Acks.ALL
    compression: Codec = Codec.NONE
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    idempotence: bool = True
    record_headers: tuple[Header, ...] = ()
    window_ms: int | None = None

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        _take_members(self, {"acks": Acks, "compression": Codec})
        _require_kinds(self, {"idempotence": bool})
        try:
            encode_headers(self.record_headers)
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError("record.headers", f"is {self.record_headers!r}: {error}") from error
        _require_between(
            self,
            {
                "linger_ms": (0, 600_000),
                "batch_size": (1, 256 * 1024 * 1024),
                "buffer_memory": (self.batch_size, MAX_BUFFER_BYTES),
                "max_request_size": (1024, MAX_FIELD_BYTES),
                "max_block_ms": (0, MAX_TIMEOUT_MS),
                "max_in_flight": (1, 100),
                "request_timeout_ms": (1, MAX_TIMEOUT_MS),
                "delivery_timeout_ms": (self.linger_ms, MAX_TIMEOUT_MS),
            },
        )
        if self.window_ms is not None:
            _require_between(self, {"window_ms": (1, MAX_TIMEOUT_MS * 366)})
        if self.idempotence and self.acks is not Acks.ALL:
            raise ConfigurationError("enable.idempotence", "needs acks=all; turn it off to use acks 0 or 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How much is fetched ahead.

    For each broker at most one response of about `max_bytes` waits to be polled while the next one is on its way.
    `max_opened_bytes` bounds what `records()` opens of a single compressed batch.
    """

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 16 * 1024 * 1024
    max_partition_bytes: int = 4 * 1024 * 1024
    max_opened_bytes: int = MIN_OPENED_BYTES
    auto_offset_reset: OffsetReset = OffsetReset.NONE

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        _take_members(self, {"auto_offset_reset": OffsetReset})
        _require_between(
            self,
            {
                "max_wait_ms": (0, 600_000),
                "min_bytes": (0, MAX_FIELD_BYTES),
                "max_bytes": (1, MAX_FIELD_BYTES),
                "max_partition_bytes": (1, MAX_FIELD_BYTES),
                "max_opened_bytes": (1, MAX_OPENED_BYTES),
            },
        )
