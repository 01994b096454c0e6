"""Declares the settings of a broker under Kafka's names: type, default, bounds, and the text that operators read.

DescribeConfigs (KIP-569) and docs/broker.md show the text under a field. A setting that is the default of a topic
setting also provides its bounds and text (`topic.py`).
"""

import os
import sys
from collections.abc import Mapping
from enum import Enum, auto
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from pipeline.broker.settings.contract import subject_space
from pipeline.broker.settings.listeners import ListenersConfig
from pipeline.coordination.zookeeper_security import OPEN_ZOOKEEPER, ZooKeeperSecurity, gathered_zookeeper
from pipeline.errors import ConfigurationError
from pipeline.log.known_producers import DEFAULT_MAX_PRODUCERS
from pipeline.model import MAX_INT64, BrokerId, HostPort
from pipeline.net.http.login import NO_LOGIN, HttpLogin, gathered_login
from pipeline.net.http.security import OPEN_HTTP, HttpSecurity, gathered_http
from pipeline.records.memory import DEFAULT_CAPACITY_BYTES
from pipeline.settings import MAX_INT16, MAX_INT32, Address, SettingsModel, checked_together, parsed_by


class Mark(Enum):
    """A property of a setting that its type does not show."""

    DYNAMIC = auto()
    """The setting can be changed while the broker runs (KIP-226), like every default of a topic setting."""
    LIST = auto()
    """Values can be appended and removed one by one."""
    TABLE = auto()
    """The field stands for settings that are declared elsewhere."""


TimestampType = Literal["CreateTime", "LogAppendTime"]
CompressionType = Literal["uncompressed", "producer", "gzip", "snappy", "lz4", "zstd"]


def _check_policies(value: str) -> str:
    for policy in value.split(","):
        if policy.strip() not in {"delete", "compact"}:
            raise ValueError("cleanup.policy is a list of: delete, compact")
    return value


def _check_gzip_level(value: int) -> int:
    if value == 0:
        raise ValueError("must be -1 or from 1 to 9")
    return value


def _parse_overrides(text: str) -> dict[str, int]:
    overrides = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = part.rpartition(":")
        try:
            host = str(ip_address(address.strip("[]")))
        except ValueError:
            raise ValueError(f"{part!r} is not ADDRESS:COUNT, with an IP address") from None
        if not count.isdecimal() or int(count) > MAX_INT32:
            raise ValueError(f"{part!r} does not end in a number of connections")
        overrides[host] = int(count)
    return overrides


def _parse_urls(text: str) -> tuple[str, ...]:
    urls = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not http://HOST:PORT or https://HOST:PORT")
    if len(set(map(subject_space, urls))) > 1:
        raise ValueError("the URLs name several contexts; registries must hold the same schemas")
    return urls


SchemaRegistryUrls = Annotated[tuple[str, ...], parsed_by(_parse_urls)]


class BrokerConfig(SettingsModel):
    """The settings of one broker. Build them with `from_settings`."""

    service: ClassVar[str] = "broker"

    broker_id: BrokerId = Field(alias="broker.id", ge=0, le=MAX_INT32)
    """Id of the broker, unique in its cluster."""
    rack: str | None = Field(None, alias="broker.rack", min_length=1)
    """Rack of the broker. New topics spread their replicas over the racks if every broker has one."""
    datacenter: str | None = Field(None, alias="datacenter", min_length=1)
    """Name of this cluster in the audit. A broker without a name does not count records."""
    log_dirs: tuple[Path, ...] = Field(alias="log.dirs")
    """Directories of the logs, one for each disk, with commas between them. A directory in use is refused."""
    zookeeper_connect: str = Field(alias="zookeeper.connect", min_length=1)
    """Addresses of the ZooKeeper servers, `host:port,...`, with an optional path (chroot) at the end."""
    zookeeper_session_timeout_ms: int = Field(18_000, alias="zookeeper.session.timeout.ms", ge=1000, le=3_600_000)
    """Time in ms without a heartbeat after which ZooKeeper expires the broker's session and other replicas become
    leaders. A broker that was killed and starts again does not wait for this."""
    zookeeper_security: Annotated[ZooKeeperSecurity, Mark.TABLE] = Field(OPEN_ZOOKEEPER, alias="zookeeper.security")
    """Protection of the connection to ZooKeeper, and of znodes: settings with a table of their own."""
    listening: Annotated[ListenersConfig, Mark.TABLE] = Field(ListenersConfig.from_settings({}), alias="listening")
    """Listeners, and who may do what: settings with a table of their own."""
    http_listen: Address = Field(HostPort("127.0.0.1", 0), alias="http.listen")
    """Address of the HTTP server for `/metrics`, `/healthz` and `/readyz`. Port 0 takes a free port."""
    http: Annotated[HttpSecurity, Mark.TABLE] = Field(OPEN_HTTP, alias="http.security")
    """TLS and users of the HTTP server: settings with a table of their own."""

    max_connections: Annotated[int, Mark.DYNAMIC] = Field(10_000, alias="max.connections", ge=1, le=1_000_000)
    """Maximum number of connections. Further ones are closed at once, unless a client that has not logged in yet makes
    room; for brokers with a listener of their own the connection that was silent for longest does."""
    max_connections_per_ip: Annotated[int, Mark.DYNAMIC] = Field(
        MAX_INT32, alias="max.connections.per.ip", ge=0, le=MAX_INT32
    )
    """Maximum number of connections from one IP address. 0 is allowed only with overrides."""
    max_connections_per_ip_overrides: Annotated[dict[str, int], parsed_by(_parse_overrides), Mark.DYNAMIC] = Field(
        {}, alias="max.connections.per.ip.overrides"
    )
    """Exceptions from `max.connections.per.ip` for single IP addresses, `ADDRESS:COUNT,...`."""
    connections_max_idle_ms: int = Field(600_000, alias="connections.max.idle.ms", ge=1000, le=MAX_INT64)
    """Time in ms after which an idle connection is closed. A connection that receives an answer slowly is not idle."""
    socket_request_max_bytes: int = Field(104_857_600, alias="socket.request.max.bytes", ge=1024, le=MAX_INT32)
    """Largest request in bytes. A larger request ends its connection."""
    queued_max_request_bytes: int = Field(
        134_217_728, alias="queued.max.request.bytes", ge=-1, le=MAX_INT64, validate_default=True
    )
    """Memory in bytes for all large requests and long answers in progress, at least `socket.request.max.bytes`. -1 or 0
    (Kafka's default) sets no limit for requests with records."""
    opened_batches_max_bytes: int = Field(
        DEFAULT_CAPACITY_BYTES, alias="opened.batches.max.bytes", ge=16_777_216, le=MAX_INT64
    )
    """Memory in bytes for all batches that are decompressed at the same time. Further batches wait for their turn."""
    client_state_max_bytes: int = Field(41_943_040, alias="client.state.max.bytes", ge=1_048_576, le=MAX_INT64)
    """Memory in bytes for fetch sessions, group members and committed offsets together. Raise it if clients get
    COORDINATOR_NOT_AVAILABLE and the log warns `offsets_refused`."""
    fetch_max_bytes: int = Field(57_671_680, alias="fetch.max.bytes", ge=1024, le=MAX_INT32)
    """Maximum size in bytes of a Fetch response. The first batch of a response is always returned whole."""
    max_fetch_sessions: int = Field(1000, alias="max.incremental.fetch.session.cache.slots", ge=0, le=1_000_000)
    """Maximum number of fetch sessions. Further consumers name all their partitions in every Fetch request."""

    num_partitions: int = Field(1, alias="num.partitions", ge=1, le=5000)
    """Partitions of a topic that is created without a number of partitions."""
    default_replication_factor: int = Field(1, alias="default.replication.factor", ge=1, le=MAX_INT16)
    """Replicas per partition of a topic that is created without a replication factor."""
    min_insync_replicas: int = Field(1, alias="min.insync.replicas", ge=1, le=MAX_INT32)
    """In-sync replicas that `acks=all` needs. Writes with `acks=all` are refused while fewer replicas are in sync."""
    unclean_leader_election: bool = Field(default=False, alias="unclean.leader.election.enable")
    """True if an out-of-sync replica may lead when no in-sync replica is alive. Acknowledged records are lost then."""
    auto_create_topics: bool = Field(default=True, alias="auto.create.topics.enable")
    """True if a topic is created when a client asks for its metadata. Turn it off on the hub of a mirror."""
    producer_id_expiration_ms: int = Field(86_400_000, alias="producer.id.expiration.ms", ge=1, le=MAX_INT64)
    """Time in ms after its last batch at which an idempotent producer is forgotten, by the next retention check."""
    known_producers_max: int = Field(DEFAULT_MAX_PRODUCERS, alias="known.producers.max", ge=1, le=MAX_INT64)
    """Maximum number of idempotent producers that the broker remembers; a producer counts once for each partition that
    it writes to. Batches of further producers are refused with REQUEST_TIMED_OUT, which clients retry."""
    message_max_bytes: int = Field(1_048_588, alias="message.max.bytes", ge=0, le=MAX_INT32)
    """Largest record batch in bytes."""
    message_timestamp_type: TimestampType = Field("CreateTime", alias="log.message.timestamp.type")
    """Clock that sets a record's timestamp: `CreateTime` is the producer's clock, `LogAppendTime` the broker's."""
    message_timestamp_before_max_ms: int = Field(
        MAX_INT64, alias="log.message.timestamp.before.max.ms", ge=0, le=MAX_INT64
    )
    """Time in ms by which a record's timestamp may be behind the broker's clock. Older records are refused."""
    message_timestamp_after_max_ms: int = Field(
        3_600_000, alias="log.message.timestamp.after.max.ms", ge=0, le=MAX_INT64
    )
    """Time in ms by which a record's timestamp may be ahead of the broker's clock. Later records are refused; a batch
    whose header alone is ahead has its header corrected."""
    compression_type: CompressionType = Field("producer", alias="compression.type")
    """Codec of stored batches. `producer` keeps the codec of each batch; any other value makes the broker recompress
    batches of other codecs."""
    compression_gzip_level: Annotated[int, AfterValidator(_check_gzip_level)] = Field(
        -1, alias="compression.gzip.level", ge=-1, le=9
    )
    """Level of compression if `compression.type` is `gzip`: 1 to 9, or -1 for gzip's default."""
    compression_lz4_level: int = Field(9, alias="compression.lz4.level", ge=1, le=17)
    """Level of compression if `compression.type` is `lz4`. 9 is the fast level."""
    compression_zstd_level: int = Field(3, alias="compression.zstd.level", ge=-131_072, le=22)
    """Level of compression if `compression.type` is `zstd`."""
    log_segment_bytes: int = Field(1_073_741_824, alias="log.segment.bytes", ge=1024, le=MAX_INT32)
    """Size in bytes at which a segment is closed and the next one begins."""
    log_roll_ms: int = Field(604_800_000, alias="log.roll.ms", ge=1, le=MAX_INT64)
    """Time in ms that the records of one segment may span before the next segment begins."""
    log_retention_hours: int = Field(168, alias="log.retention.hours", ge=-1, le=MAX_INT32)
    """Retention time in hours, if it is not set in ms or minutes; -1 keeps records for ever."""
    log_retention_minutes: int | None = Field(None, alias="log.retention.minutes", ge=-1, le=MAX_INT32)
    """Retention time in minutes, if it is not set in ms; -1 keeps records for ever."""
    log_retention_ms: int | None = Field(None, alias="log.retention.ms", ge=-1, le=MAX_INT64, validate_default=True)
    """Retention time in ms: a segment is deleted when its newest record is older; -1 keeps records for ever."""
    log_retention_bytes: int = Field(-1, alias="log.retention.bytes", ge=-1, le=MAX_INT64)
    """Size in bytes of a partition above which its oldest segments are deleted; -1 sets no limit."""
    log_retention_check_interval_ms: int = Field(300_000, alias="log.retention.check.interval.ms", ge=1, le=MAX_INT64)
    """Interval in ms between retention checks."""
    log_segment_delete_delay_ms: int = Field(60_000, alias="log.segment.delete.delay.ms", ge=0, le=MAX_INT64)
    """Time in ms between renaming the files of a deleted segment or partition and removing them."""
    log_cleanup_policy: Annotated[str, AfterValidator(_check_policies), Mark.LIST] = Field(
        "delete", alias="log.cleanup.policy"
    )
    """Treatment of old records: `delete` deletes segments by age and size, `compact` keeps the newest record of each
    key, `compact,delete` does both."""
    log_cleaner_enable: bool = Field(default=True, alias="log.cleaner.enable")
    """True if topics whose `cleanup.policy` contains `compact` are compacted."""
    log_cleaner_threads: int = Field(1, alias="log.cleaner.threads", ge=1, le=64)
    """Maximum number of cleaner processes that run at the same time."""
    log_cleaner_backoff_ms: int = Field(15_000, alias="log.cleaner.backoff.ms", ge=1, le=MAX_INT64)
    """Interval in ms between searches for logs to compact."""
    log_cleaner_dedupe_buffer_size: int = Field(
        134_217_728, alias="log.cleaner.dedupe.buffer.size", ge=1_048_576, le=MAX_INT64
    )
    """Memory in bytes for all key tables, 24 bytes a key. Raise it if one cleaning cannot hold the keys of a log."""
    log_cleaner_io_buffer_load_factor: float = Field(0.9, alias="log.cleaner.io.buffer.load.factor", gt=0, le=1)
    """Fraction of a key table that may be filled. A fuller table holds more keys and is slower."""
    log_cleaner_io_max_bytes_per_second: float = Field(
        sys.float_info.max, alias="log.cleaner.io.max.bytes.per.second", ge=1, allow_inf_nan=False
    )
    """Maximum bytes per second that all cleaner processes read and write. Lower it if clients become slow."""
    log_cleaner_min_cleanable_ratio: float = Field(0.5, alias="log.cleaner.min.cleanable.ratio", ge=0, le=1)
    """Fraction of a log that must be dirty (not compacted) for compaction. A lower value saves disk space."""
    log_cleaner_min_compaction_lag_ms: int = Field(0, alias="log.cleaner.min.compaction.lag.ms", ge=0, le=MAX_INT64)
    """Age in ms that a record must have before it is compacted."""
    log_cleaner_max_compaction_lag_ms: int = Field(
        MAX_INT64, alias="log.cleaner.max.compaction.lag.ms", ge=1, le=MAX_INT64
    )
    """Age in ms of the oldest dirty segment at which a log is compacted, whatever its dirty ratio."""
    log_cleaner_delete_retention_ms: int = Field(
        86_400_000, alias="log.cleaner.delete.retention.ms", ge=0, le=MAX_INT64
    )
    """Time in ms for which tombstones stay readable. Set it longer than any consumer or broker is away."""
    log_index_interval_bytes: int = Field(4096, alias="log.index.interval.bytes", ge=0, le=MAX_INT32)
    """Bytes of log between two entries of a segment's index."""
    log_flush_interval_messages: int = Field(MAX_INT64, alias="log.flush.interval.messages", ge=1, le=MAX_INT64)
    """Records after which the log is flushed to disk. 1 flushes before each acknowledgement."""
    log_flush_interval_ms: int = Field(MAX_INT64, alias="log.flush.interval.ms", ge=0, le=MAX_INT64)
    """Time in ms after which a record is flushed to disk. Values of 1000 and more are checked every second."""

    offsets_topic_num_partitions: int = Field(50, alias="offsets.topic.num.partitions", ge=1, le=5000)
    """Partitions of `__consumer_offsets` when that topic is created."""
    offsets_topic_replication_factor: int = Field(3, alias="offsets.topic.replication.factor", ge=1, le=MAX_INT16)
    """Replicas per partition of `__consumer_offsets` when that topic is created. Fewer brokers need a lower value."""
    offsets_topic_segment_bytes: int = Field(104_857_600, alias="offsets.topic.segment.bytes", ge=1024, le=MAX_INT32)
    """Size in bytes of a segment of `__consumer_offsets` when that topic is created."""
    offsets_commit_timeout_ms: int = Field(5000, alias="offsets.commit.timeout.ms", ge=1, le=MAX_INT32)
    """Time in ms that an offset commit, or a group's new generation, waits for the in-sync replicas."""
    offsets_retention_minutes: int = Field(10_080, alias="offsets.retention.minutes", ge=1, le=MAX_INT32)
    """Time in minutes for which unused committed offsets are kept."""
    offsets_retention_check_interval_ms: int = Field(
        600_000, alias="offsets.retention.check.interval.ms", ge=1, le=MAX_INT64
    )
    """Interval in ms between checks for expired offsets."""
    offset_metadata_max_bytes: int = Field(4096, alias="offset.metadata.max.bytes", ge=0, le=MAX_INT32)
    """Maximum size in bytes of the metadata that a client stores with a committed offset."""

    group_min_session_timeout_ms: int = Field(6000, alias="group.min.session.timeout.ms", ge=1, le=MAX_INT32)
    """Shortest session timeout in ms that a group member may request."""
    group_max_session_timeout_ms: int = Field(1_800_000, alias="group.max.session.timeout.ms", ge=1, le=MAX_INT32)
    """Longest session timeout in ms that a group member may request."""
    group_initial_rebalance_delay_ms: int = Field(3000, alias="group.initial.rebalance.delay.ms", ge=0, le=MAX_INT32)
    """Time in ms that a new group waits for more members before its first rebalance."""
    group_max_size: int = Field(MAX_INT32, alias="group.max.size", ge=1, le=MAX_INT32)
    """Maximum number of members of a group."""

    num_replica_fetchers: int = Field(1, alias="num.replica.fetchers", ge=1, le=64)
    """Connections to each leader broker over which this broker copies records."""
    replica_fetch_min_bytes: int = Field(1, alias="replica.fetch.min.bytes", ge=0, le=MAX_INT32)
    """Bytes that a leader waits for before it answers a follower's Fetch request."""
    replica_fetch_wait_max_ms: int = Field(500, alias="replica.fetch.wait.max.ms", ge=1, le=60_000)
    """Time in ms that a leader waits at most for `replica.fetch.min.bytes` before it answers a follower."""
    replica_fetch_max_bytes: int = Field(1_048_576, alias="replica.fetch.max.bytes", ge=1024, le=MAX_INT32)
    """Bytes of one partition that a follower requests at once."""
    replica_fetch_response_max_bytes: int = Field(
        10_485_760, alias="replica.fetch.response.max.bytes", ge=1024, le=MAX_INT32
    )
    """Bytes of all partitions that a follower requests at once."""
    replica_fetch_backoff_ms: int = Field(1000, alias="replica.fetch.backoff.ms", ge=1, le=3_600_000)
    """Time in ms that a follower waits after a failure before it tries again."""
    replica_socket_timeout_ms: int = Field(30_000, alias="replica.socket.timeout.ms", ge=1, le=3_600_000)
    """Time in ms that a follower waits for an answer of its leader."""
    replica_lag_time_max_ms: int = Field(30_000, alias="replica.lag.time.max.ms", ge=100, le=3_600_000)
    """Time in ms after which a follower that has not caught up leaves the ISR."""
    replica_high_watermark_checkpoint_interval_ms: int = Field(
        5000, alias="replica.high.watermark.checkpoint.interval.ms", ge=1, le=3_600_000
    )
    """Interval in ms between checkpoints of the high watermarks to disk."""
    leader_replication_throttled_rate: Annotated[int, Mark.DYNAMIC] = Field(
        MAX_INT64, alias="leader.replication.throttled.rate", ge=0, le=MAX_INT64
    )
    """Maximum bytes per second that this broker sends to throttled replicas (`leader.replication.throttled.replicas`).
    Lower it while partitions are reassigned."""
    follower_replication_throttled_rate: Annotated[int, Mark.DYNAMIC] = Field(
        MAX_INT64, alias="follower.replication.throttled.rate", ge=0, le=MAX_INT64
    )
    """Maximum bytes per second that this broker's throttled replicas (`follower.replication.throttled.replicas`) fetch.
    Lower it while partitions are reassigned."""
    controlled_shutdown: bool = Field(default=True, alias="controlled.shutdown.enable")
    """True if the broker hands over its leaderships before it stops."""
    auto_leader_rebalance: bool = Field(default=True, alias="auto.leader.rebalance.enable")
    """True if the controller elects preferred replicas again by itself."""
    leader_imbalance_check_interval_seconds: int = Field(
        300, alias="leader.imbalance.check.interval.seconds", ge=1, le=86_400
    )
    """Interval in seconds between checks for preferred replicas that do not lead; a returning broker adds a check."""
    leader_imbalance_per_broker_percentage: int = Field(
        10, alias="leader.imbalance.per.broker.percentage", ge=0, le=100
    )
    """Percentage of a broker's preferred partitions that others may lead before preferred replicas are elected."""

    quota_producer_default: int = Field(MAX_INT64, alias="quota.producer.default", ge=1, le=MAX_INT64)
    """Bytes per second that a client id may produce, if ZooKeeper holds no quota for the client."""
    quota_consumer_default: int = Field(MAX_INT64, alias="quota.consumer.default", ge=1, le=MAX_INT64)
    """Bytes per second that a client id may fetch, if ZooKeeper holds no quota for the client."""
    quota_window_num: int = Field(11, alias="quota.window.num", ge=1, le=1000)
    """Number of samples over which the rates of quotas are measured."""
    quota_window_size_seconds: int = Field(1, alias="quota.window.size.seconds", ge=1, le=3600)
    """Length in seconds of one sample of a rate."""

    schema_registry_urls: SchemaRegistryUrls = Field((), alias="confluent.schema.registry.url")
    """URLs of schema registries that hold the same schemas, `http://HOST:PORT,...`; with `/contexts/.NAME` behind
    each, subjects are those of this context. Needed on every broker that leads a partition of a topic with
    `confluent.value.schema.validation` or its like. Takes about 140 MB of memory."""
    schema_registry_login: Annotated[HttpLogin, Mark.TABLE] = Field(NO_LOGIN, alias="confluent.login")
    """Password or token for the registries: `confluent.basic.auth.user.info` and so on, see docs/security/http.md."""
    schema_registry_timeout_ms: int = Field(3000, alias="schema.registry.timeout.ms", ge=100, le=60_000)
    """Time in ms that a Produce request waits at most for the schema registries. The client then gets REQUEST_TIMED_OUT
    and tries again."""
    schema_registry_max_cache_size: int = Field(
        10_000, alias="confluent.schema.registry.max.cache.size", ge=1, le=1_000_000
    )
    """Maximum number of answers of the schema registry that are kept: pairs of schema id and subject."""
    schema_registry_cache_ttl_sec: int = Field(300, alias="schema.registry.cache.ttl.sec", ge=1, le=MAX_INT32)
    """Age in s at which the answer that an id belongs to a subject is asked for again, while the id stays valid."""
    missing_id_cache_ttl_sec: int = Field(1, alias="confluent.missing.id.cache.ttl.sec", ge=0, le=86_400)
    """Time in s for which an id that the schema registry does not know, or knows in other subjects alone, is refused
    without asking again. Confluent's default is 60."""

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
        """Return the retention time in the finest unit that is set, as in Kafka. A negative time is -1, for ever."""
        if value is None:
            minutes = given.data.get("log_retention_minutes")
            minutes = given.data.get("log_retention_hours", 0) * 60 if minutes is None else minutes
            value = minutes * 60_000
        return max(-1, value)

    @property
    def max_request_memory_bytes(self) -> int | None:
        """Memory for all large requests in progress, at least that of the largest request. None for no limit."""
        bound = self.queued_max_request_bytes
        return max(bound, self.socket_request_max_bytes) if bound > 0 else None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Build the configuration. Raises ConfigurationError, also for settings that contradict each other."""
        of_listeners = {key: value for key, value in settings.items() if ListenersConfig.has(key)}
        others = {key: value for key, value in settings.items() if key not in of_listeners}
        check_others = partial(cls._from_others, others)
        if of_listeners:
            listening, found = checked_together(partial(ListenersConfig.from_settings, of_listeners), check_others)
            config: Self = found.model_copy(update={"listening": listening})
        else:
            config = check_others()
        if config.max_connections_per_ip == 0 and not config.max_connections_per_ip_overrides:
            raise ConfigurationError(
                "max.connections.per.ip",
                "may be 0 only if max.connections.per.ip.overrides names addresses: no other client could connect, not "
                "even to change the setting",
            )
        return config

    @classmethod
    def _from_others(cls, settings: Mapping[str, Any]) -> Self:
        """Build the configuration without that of listeners. Raises ConfigurationError."""
        return super().from_settings(gathered_login(gathered_zookeeper(gathered_http(settings)), "confluent."))


FIELDS: Mapping[str, str] = MappingProxyType(
    {str(field.alias): name for name, field in BrokerConfig.model_fields.items() if Mark.TABLE not in field.metadata}
)
"""Attributes of `BrokerConfig` by the names of the settings."""
