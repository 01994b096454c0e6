"""The settings of a broker, under Kafka's names. Pure.

Built once, from a flat mapping of dotted keys; an unknown key, a wrong type or a value out of bounds is a
ConfigurationError that names the key.
"""

import os
import socket
import sys
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from pipeline.errors import ConfigurationError
from pipeline.log.known_producers import DEFAULT_MAX_PRODUCERS
from pipeline.model import BrokerId, HostPort
from pipeline.records.memory import DEFAULT_CAPACITY_BYTES
from pipeline.settings import MAX_INT64, Address, SettingsModel, parse_address

PLAINTEXT = "PLAINTEXT"
_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})


def check_cleanup_policies(value: str) -> str:
    """A list of what may become of old records. Raises ValueError."""
    for policy in value.split(","):
        if policy.strip() not in {"delete", "compact"}:
            raise ValueError("cleanup.policy is a list of: delete, compact")
    return value


def check_gzip_level(value: int) -> int:
    """A level of gzip, which has none between -1 (its default) and 1. Raises ValueError."""
    if value == 0:
        raise ValueError("must be -1 or from 1 to 9")
    return value


def check_throttled_replicas(value: str) -> str:
    """`*`, nothing, or `partition:broker,...`. Raises ValueError."""
    for part in value.split(",") if value not in {"", "*"} else ():
        partition, separator, broker = part.strip().partition(":")
        if not (separator and partition.isdecimal() and broker.isdecimal()):
            raise ValueError("is a list of PARTITION:BROKER with commas between, or *")
    return value


def _parse_listener(text: str) -> HostPort:
    if "," in text:
        raise ValueError("one listener is supported; give a single PLAINTEXT://host:port")
    protocol, separator, address = text.partition("://")
    if not separator or protocol != PLAINTEXT:
        raise ValueError(f"{text!r} is not PLAINTEXT://host:port (the one protocol supported)")
    return parse_address(address)


def _parse_overrides(text: str) -> dict[str, int]:
    overrides = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = part.rpartition(":")
        try:
            host = str(ip_address(address.strip("[]")))
        except ValueError:
            raise ValueError(f"{part!r} is not ADDRESS:COUNT, with an IP address") from None
        if not count.isdecimal() or int(count) > 2**31 - 1:
            raise ValueError(f"{part!r} does not end in a number of connections")
        overrides[host] = int(count)
    return overrides


class BrokerConfig(SettingsModel):
    """What one broker is told. Build it with `from_settings`."""

    service: ClassVar[str] = "broker"

    broker_id: BrokerId = Field(alias="broker.id", ge=0, le=2**31 - 1)
    rack: str | None = Field(default=None, alias="broker.rack", min_length=1)
    datacenter: str | None = Field(default=None, alias="datacenter", min_length=1)
    log_dirs: tuple[Path, ...] = Field(alias="log.dirs")
    zookeeper_connect: str = Field(alias="zookeeper.connect", min_length=1)
    zookeeper_session_timeout_ms: int = Field(
        default=18_000, alias="zookeeper.session.timeout.ms", ge=1000, le=3_600_000
    )
    listener: HostPort = Field(default=HostPort("", 9092), alias="listeners")
    advertised_listener: HostPort | None = Field(default=None, alias="advertised.listeners")
    http_listen: Address = Field(default=HostPort("127.0.0.1", 0), alias="http.listen")

    max_connections: int = Field(default=10_000, alias="max.connections", ge=1, le=1_000_000)
    max_connections_per_ip: int = Field(default=2**31 - 1, alias="max.connections.per.ip", ge=0, le=2**31 - 1)
    max_connections_per_ip_overrides: dict[str, int] = Field(default={}, alias="max.connections.per.ip.overrides")
    connections_max_idle_ms: int = Field(default=600_000, alias="connections.max.idle.ms", ge=1000, le=MAX_INT64)
    socket_request_max_bytes: int = Field(default=104_857_600, alias="socket.request.max.bytes", ge=1024, le=2**31 - 1)
    queued_max_request_bytes: int = Field(
        default=134_217_728, alias="queued.max.request.bytes", ge=-1, le=MAX_INT64, validate_default=True
    )
    opened_batches_max_bytes: int = Field(
        default=DEFAULT_CAPACITY_BYTES, alias="opened.batches.max.bytes", ge=16_777_216, le=MAX_INT64
    )
    client_state_max_bytes: int = Field(default=41_943_040, alias="client.state.max.bytes", ge=1_048_576, le=MAX_INT64)
    fetch_max_bytes: int = Field(default=57_671_680, alias="fetch.max.bytes", ge=1024, le=2**31 - 1)
    max_fetch_sessions: int = Field(default=1000, alias="max.incremental.fetch.session.cache.slots", ge=0, le=1_000_000)

    num_partitions: int = Field(default=1, alias="num.partitions", ge=1, le=5000)
    default_replication_factor: int = Field(default=1, alias="default.replication.factor", ge=1, le=2**15 - 1)
    min_insync_replicas: int = Field(default=1, alias="min.insync.replicas", ge=1, le=2**31 - 1)
    unclean_leader_election: bool = Field(default=False, alias="unclean.leader.election.enable")
    auto_create_topics: bool = Field(default=True, alias="auto.create.topics.enable")
    producer_id_expiration_ms: int = Field(default=86_400_000, alias="producer.id.expiration.ms", ge=1, le=MAX_INT64)
    known_producers_max: int = Field(default=DEFAULT_MAX_PRODUCERS, alias="known.producers.max", ge=1, le=MAX_INT64)
    message_max_bytes: int = Field(default=1_048_588, alias="message.max.bytes", ge=0, le=2**31 - 1)
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = Field(
        default="CreateTime", alias="log.message.timestamp.type"
    )
    message_timestamp_before_max_ms: int = Field(
        default=MAX_INT64, alias="log.message.timestamp.before.max.ms", ge=0, le=MAX_INT64
    )
    message_timestamp_after_max_ms: int = Field(
        default=3_600_000, alias="log.message.timestamp.after.max.ms", ge=0, le=MAX_INT64
    )
    compression_type: Literal["uncompressed", "producer", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="producer", alias="compression.type"
    )
    compression_gzip_level: Annotated[int, AfterValidator(check_gzip_level)] = Field(
        default=-1, alias="compression.gzip.level", ge=-1, le=9
    )
    compression_lz4_level: int = Field(default=9, alias="compression.lz4.level", ge=1, le=17)
    compression_zstd_level: int = Field(default=3, alias="compression.zstd.level", ge=-131_072, le=22)
    log_segment_bytes: int = Field(default=1_073_741_824, alias="log.segment.bytes", ge=1024, le=2**31 - 1)
    log_roll_ms: int = Field(default=604_800_000, alias="log.roll.ms", ge=1, le=MAX_INT64)
    log_retention_hours: int = Field(default=168, alias="log.retention.hours", ge=-1, le=2**31 - 1)
    log_retention_minutes: int | None = Field(default=None, alias="log.retention.minutes", ge=-1, le=2**31 - 1)
    log_retention_ms: int | None = Field(
        default=None, alias="log.retention.ms", ge=-1, le=MAX_INT64, validate_default=True
    )
    log_retention_bytes: int = Field(default=-1, alias="log.retention.bytes", ge=-1, le=MAX_INT64)
    log_retention_check_interval_ms: int = Field(
        default=300_000, alias="log.retention.check.interval.ms", ge=1, le=MAX_INT64
    )
    log_segment_delete_delay_ms: int = Field(default=60_000, alias="log.segment.delete.delay.ms", ge=0, le=MAX_INT64)
    log_cleanup_policy: Annotated[str, AfterValidator(check_cleanup_policies)] = Field(
        default="delete", alias="log.cleanup.policy"
    )
    log_cleaner_enable: bool = Field(default=True, alias="log.cleaner.enable")
    log_cleaner_threads: int = Field(default=1, alias="log.cleaner.threads", ge=1, le=64)
    log_cleaner_backoff_ms: int = Field(default=15_000, alias="log.cleaner.backoff.ms", ge=1, le=MAX_INT64)
    log_cleaner_dedupe_buffer_size: int = Field(
        default=134_217_728, alias="log.cleaner.dedupe.buffer.size", ge=1_048_576, le=MAX_INT64
    )
    log_cleaner_io_buffer_load_factor: float = Field(default=0.9, alias="log.cleaner.io.buffer.load.factor", gt=0, le=1)
    log_cleaner_io_max_bytes_per_second: float = Field(
        default=sys.float_info.max, alias="log.cleaner.io.max.bytes.per.second", ge=1, allow_inf_nan=False
    )
    log_cleaner_min_cleanable_ratio: float = Field(default=0.5, alias="log.cleaner.min.cleanable.ratio", ge=0, le=1)
    log_cleaner_min_compaction_lag_ms: int = Field(
        default=0, alias="log.cleaner.min.compaction.lag.ms", ge=0, le=MAX_INT64
    )
    log_cleaner_max_compaction_lag_ms: int = Field(
        default=MAX_INT64, alias="log.cleaner.max.compaction.lag.ms", ge=1, le=MAX_INT64
    )
    log_cleaner_delete_retention_ms: int = Field(
        default=86_400_000, alias="log.cleaner.delete.retention.ms", ge=0, le=MAX_INT64
    )
    log_index_interval_bytes: int = Field(default=4096, alias="log.index.interval.bytes", ge=0, le=2**31 - 1)
    log_flush_interval_messages: int = Field(default=MAX_INT64, alias="log.flush.interval.messages", ge=1, le=MAX_INT64)
    log_flush_interval_ms: int = Field(default=MAX_INT64, alias="log.flush.interval.ms", ge=0, le=MAX_INT64)

    offsets_topic_num_partitions: int = Field(default=50, alias="offsets.topic.num.partitions", ge=1, le=5000)
    offsets_topic_replication_factor: int = Field(
        default=3, alias="offsets.topic.replication.factor", ge=1, le=2**15 - 1
    )
    offsets_topic_segment_bytes: int = Field(
        default=104_857_600, alias="offsets.topic.segment.bytes", ge=1024, le=2**31 - 1
    )
    offsets_commit_timeout_ms: int = Field(default=5000, alias="offsets.commit.timeout.ms", ge=1, le=2**31 - 1)
    offsets_retention_minutes: int = Field(default=10_080, alias="offsets.retention.minutes", ge=1, le=2**31 - 1)
    offsets_retention_check_interval_ms: int = Field(
        default=600_000, alias="offsets.retention.check.interval.ms", ge=1, le=MAX_INT64
    )
    offset_metadata_max_bytes: int = Field(default=4096, alias="offset.metadata.max.bytes", ge=0, le=2**31 - 1)

    group_min_session_timeout_ms: int = Field(default=6000, alias="group.min.session.timeout.ms", ge=1, le=2**31 - 1)
    group_max_session_timeout_ms: int = Field(
        default=1_800_000, alias="group.max.session.timeout.ms", ge=1, le=2**31 - 1
    )
    group_initial_rebalance_delay_ms: int = Field(
        default=3000, alias="group.initial.rebalance.delay.ms", ge=0, le=2**31 - 1
    )
    group_max_size: int = Field(default=2**31 - 1, alias="group.max.size", ge=1, le=2**31 - 1)

    num_replica_fetchers: int = Field(default=1, alias="num.replica.fetchers", ge=1, le=64)
    replica_fetch_min_bytes: int = Field(default=1, alias="replica.fetch.min.bytes", ge=0, le=2**31 - 1)
    replica_fetch_wait_max_ms: int = Field(default=500, alias="replica.fetch.wait.max.ms", ge=1, le=60_000)
    replica_fetch_max_bytes: int = Field(default=1_048_576, alias="replica.fetch.max.bytes", ge=1024, le=2**31 - 1)
    replica_fetch_response_max_bytes: int = Field(
        default=10_485_760, alias="replica.fetch.response.max.bytes", ge=1024, le=2**31 - 1
    )
    replica_fetch_backoff_ms: int = Field(default=1000, alias="replica.fetch.backoff.ms", ge=1, le=3_600_000)
    replica_socket_timeout_ms: int = Field(default=30_000, alias="replica.socket.timeout.ms", ge=1, le=3_600_000)
    replica_lag_time_max_ms: int = Field(default=30_000, alias="replica.lag.time.max.ms", ge=100, le=3_600_000)
    replica_high_watermark_checkpoint_interval_ms: int = Field(
        default=5000, alias="replica.high.watermark.checkpoint.interval.ms", ge=1, le=3_600_000
    )
    leader_replication_throttled_rate: int = Field(
        default=MAX_INT64, alias="leader.replication.throttled.rate", ge=0, le=MAX_INT64
    )
    follower_replication_throttled_rate: int = Field(
        default=MAX_INT64, alias="follower.replication.throttled.rate", ge=0, le=MAX_INT64
    )
    controlled_shutdown: bool = Field(default=True, alias="controlled.shutdown.enable")
    auto_leader_rebalance: bool = Field(default=True, alias="auto.leader.rebalance.enable")
    leader_imbalance_check_interval_seconds: int = Field(
        default=300, alias="leader.imbalance.check.interval.seconds", ge=1, le=86_400
    )
    leader_imbalance_per_broker_percentage: int = Field(
        default=10, alias="leader.imbalance.per.broker.percentage", ge=0, le=100
    )

    quota_producer_default: int = Field(default=MAX_INT64, alias="quota.producer.default", ge=1, le=MAX_INT64)
    quota_consumer_default: int = Field(default=MAX_INT64, alias="quota.consumer.default", ge=1, le=MAX_INT64)
    quota_window_num: int = Field(default=11, alias="quota.window.num", ge=1, le=1000)
    quota_window_size_seconds: int = Field(default=1, alias="quota.window.size.seconds", ge=1, le=3600)

    @field_validator("listener", "advertised_listener", mode="before")
    @classmethod
    def _read_listener(cls, value: object) -> object:
        return _parse_listener(value) if isinstance(value, str) else value

    @field_validator("log_dirs", mode="before")
    @classmethod
    def _read_log_dirs(cls, value: object) -> object:
        paths = [path.strip() for path in value.split(",")] if isinstance(value, str) else value
        if isinstance(paths, list) and "" in paths:
            raise ValueError("give one path or several, with commas between them")
        return paths

    @field_validator("log_dirs")
    @classmethod
    def _check_log_dirs(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        if not paths:
            raise ValueError("give one path or several")
        if len({os.path.normpath(path) for path in paths}) < len(paths):
            raise ValueError("names a directory twice")
        return paths

    @field_validator("log_retention_ms")
    @classmethod
    def _find_retention(cls, value: int | None, given: ValidationInfo) -> int:
        """The finest unit that is given counts, as in Kafka; a negative one is -1, for ever."""
        if value is None:
            minutes = given.data.get("log_retention_minutes")
            minutes = given.data.get("log_retention_hours", 0) * 60 if minutes is None else minutes
            value = minutes * 60_000
        return max(-1, value)

    @field_validator("max_connections_per_ip_overrides", mode="before")
    @classmethod
    def _read_overrides(cls, value: object) -> object:
        return _parse_overrides(value) if isinstance(value, str) else value

    @property
    def max_request_memory_bytes(self) -> int | None:
        """For all large requests under way; the largest one that is allowed must fit. None for no bound."""
        bound = self.queued_max_request_bytes
        return max(bound, self.socket_request_max_bytes) if bound > 0 else None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """From Kafka's names to values. Raises ConfigurationError naming the first key that is wrong."""
        config = super().from_settings(settings)
        if config.advertised_listener is None and config.listener.host in _ANY_ADDRESS:
            raise ConfigurationError(
                "advertised.listeners",
                f"is needed when listening on {config.listener.host}, which clients cannot reach",
            )
        if config.advertised_listener is not None and config.advertised_listener.host in {"", *_ANY_ADDRESS}:
            raise ConfigurationError("advertised.listeners", "needs a host name or address that clients can reach")
        if config.max_connections_per_ip == 0 and not config.max_connections_per_ip_overrides:
            raise ConfigurationError(
                "max.connections.per.ip",
                "may be 0 only if max.connections.per.ip.overrides names addresses: nobody else could connect, even "
                "to change it",
            )
        return config

    def advertised_address(self, bound_port: int) -> HostPort:
        """What clients are told: the advertised listener, else the listener, with the port that was really bound."""
        if self.advertised_listener is not None:
            port = self.advertised_listener.port or bound_port
            return HostPort(self.advertised_listener.host, port)
        return HostPort(self.listener.host or socket.getfqdn(), bound_port)
