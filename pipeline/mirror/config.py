"""Declares the settings of a mirror. Pure."""

import re
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from pipeline.coordination.zookeeper_security import OPEN_ZOOKEEPER, ZooKeeperSecurity, gathered_zookeeper
from pipeline.errors import ConfigurationError
from pipeline.mirror.selection import is_of_its_cluster, is_plain_name, without_escapes
from pipeline.mirror.topic_settings import FOLLOWED_SETTINGS, TIMESTAMP_TYPE, check_followed
from pipeline.net.http.security import OPEN_HTTP, HttpSecurity, gathered_http
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity, gathered
from pipeline.provenance import MAX_NAME_LENGTH
from pipeline.settings import Address, Addresses, SettingsModel

_HOUR_MS = 3_600_000
_IN_TOPIC_NAMES = re.compile(r"[A-Za-z0-9._-]*")


MIN_THROTTLE = 1024
MAX_THROTTLE = 10**12
"""Bounds of throttles in bytes per second."""


class GapPolicy(Enum):
    """Treatment of records that the source deleted or replaced before they were copied."""

    HALT = "halt"
    SKIP = "skip"


class DestinationMode(Enum):
    """Offsets of the replicas."""

    EXACT = "exact"
    """Those of the sources: the destination is a cluster of our brokers."""
    APPEND = "append"
    """Those that the destination gives: any Kafka cluster."""


class CompressionType(Enum):
    """Codec of batches in the replicas."""

    PRODUCER = "producer"
    """That of the source."""
    ZSTD = "zstd"


class SourceConfig(SettingsModel):
    """Settings of a live cluster to copy from."""

    service: ClassVar[str] = "mirror's source"

    name: str = Field(alias="name", min_length=1, max_length=MAX_NAME_LENGTH, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the cluster, in letters, digits, dots, underscores and hyphens. Keep it: the partition table refers to
    it."""
    bootstrap: Addresses = Field(alias="bootstrap.servers", min_length=1)
    """Addresses of brokers of the cluster, `host:port,...`."""
    security: ClientSecurity = Field(default=OPEN_SECURITY, alias="security")
    """TLS and SASL of the connections: `security.protocol`, `sasl.username` and so on, see docs/security.md."""
    zookeeper_connect: str | None = Field(default=None, alias="zookeeper.connect", min_length=1)
    """Addresses of the cluster's ZooKeeper servers, `host:port,...`, with an optional path (chroot) at the end. Set it
    to copy offsets that consumers of before Kafka 0.9 keep there; nothing is written there. Has no effect without
    `group.offsets.enabled`."""
    zookeeper_security: ZooKeeperSecurity = Field(default=OPEN_ZOOKEEPER, alias="zookeeper.security")
    """TLS and authentication of the connection to the cluster's ZooKeeper: `zookeeper.ssl.client.enable`,
    `zookeeper.auth.username` and so on, see docs/security/zookeeper.md."""

    @model_validator(mode="before")
    @classmethod
    def _gather_security(cls, settings: Any) -> Any:
        return gathered_zookeeper(gathered(settings))


class FlowConfig(SettingsModel):
    """Settings of a flow: topics of a source, and the names of their replicas."""

    service: ClassVar[str] = "mirror's flow"

    name: str = Field(alias="name", min_length=1, max_length=MAX_NAME_LENGTH, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the flow in the status, in letters, digits, dots, underscores and hyphens."""
    source: str = Field(alias="source")
    """Name of the source, one of `sources`."""
    topics: tuple[str, ...] = Field(alias="topics", min_length=1)
    """Regular expressions. A topic is mirrored if one of them matches its whole name. An internal topic (`_...`) is
    mirrored only if one of them is its name."""
    exclude: tuple[str, ...] = Field(default=(), alias="topics.exclude")
    """Regular expressions. A topic is not mirrored if one of them matches its whole name."""
    replica_topic: str = Field(default="{topic}", alias="replica.topic", min_length=1, max_length=MAX_NAME_LENGTH)
    """Name of the replicas, in which `{topic}` and `{source}` stand for the names of source topic and source."""
    gap_policy: GapPolicy | None = Field(default=None, alias="gap.policy")
    """As `gap.policy` of the mirror, whose value a flow without its own value has."""
    compression_type: CompressionType | None = Field(default=None, alias="compression.type")
    """As `compression.type` of the mirror, whose value a flow without its own value has."""
    throttle_bytes_per_s: int | None = Field(
        default=None, alias="throttle.bytes.per.second", ge=MIN_THROTTLE, le=MAX_THROTTLE
    )
    """Largest number of bytes per second that the flow copies, on average. Without a value: as many as it can."""

    @field_validator("topics")
    @classmethod
    def _topics_can_be_mirrored(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        _check_can_be_mirrored(topics)
        return topics

    @field_validator("replica_topic")
    @classmethod
    def _replica_topic_is_a_template(cls, template: str) -> str:
        text = template.replace("{topic}", "").replace("{source}", "")
        if not _IN_TOPIC_NAMES.fullmatch(text):
            raise ValueError(
                "must be {topic}, {source}, letters, digits, dots, underscores and hyphens, such as {source}.{topic}"
            )
        return template

    @model_validator(mode="after")
    def _only_named_topics_become_one(self) -> Self:
        wide = [pattern for pattern in self.topics if not is_plain_name(pattern)]
        if "{topic}" not in self.replica_topic and wide:
            raise ValueError(
                "replica.topic has no {topic}, so that all topics of the flow become one; for that each pattern must "
                f"be a plain name, with dots as \\., and {wide[0]} is none"
            )
        return self


class MirrorConfig(SettingsModel):
    """Settings of one mirror service."""

    service: ClassVar[str] = "mirror"

    destination: Addresses = Field(alias="destination.bootstrap.servers", min_length=1)
    """Addresses of brokers of the hub, `host:port,...`."""
    destination_security: ClientSecurity = Field(default=OPEN_SECURITY, alias="destination.security")
    """TLS and SASL of the connections: `destination.security.protocol`, `destination.sasl.username` and so on, see
    docs/security.md."""
    destination_mode: DestinationMode = Field(default=DestinationMode.EXACT, alias="destination.mode")
    """Offsets of the replicas. `exact` are those of the sources; the hub needs brokers of this project. `append` are
    those that the hub gives; it may be any Kafka cluster from version 2.5 on, such as Apache Kafka."""
    sources: tuple[SourceConfig, ...] = Field(alias="sources", min_length=1, max_length=100)
    """Tables `[[sources]]` of the live clusters."""
    topics: tuple[str, ...] = Field(default=(), alias="topics")
    """Regular expressions. A topic of any source is mirrored if one of them matches its whole name. An internal topic
    (`_...`) is mirrored only if one of them is its name. Needed without `flows`."""
    exclude: tuple[str, ...] = Field(default=(), alias="topics.exclude")
    """Regular expressions. A topic is not mirrored if one of them matches its whole name."""
    flows: tuple[FlowConfig, ...] = Field(default=(), alias="flows", max_length=1000)
    """Tables `[[flows]]`, in place of `topics` and `topics.exclude`."""
    http_listen: Address = Field(alias="http.listen")
    """Address of the HTTP server for the status page, `/v1/status`, `/metrics` and `/healthz`."""
    http: HttpSecurity = Field(default=OPEN_HTTP, alias="http.security")
    """TLS, users and further ports of the HTTP server: `http.ssl.keystore.location`, `http.users.file` and so on, see
    docs/security/http.md."""
    refresh_interval_ms: int = Field(default=5_000, alias="refresh.interval.ms", ge=100, le=3_600_000)
    """Interval in ms between searches for new topics and partitions."""
    fetch_max_bytes: int = Field(default=8 * 1024 * 1024, alias="fetch.max.bytes", ge=1024, le=64 * 1024 * 1024)
    """Bytes of a backlog that are on their way from one broker of a source, in all its Fetch responses."""
    fetch_max_in_flight: int = Field(default=32, alias="fetch.max.in.flight", ge=1, le=100)
    """Maximum number of Fetch requests to one broker of a source that share the partitions with a backlog, each on a
    connection of its own. More than four are sent only to a broker that is far away: 10 ms or more there and back."""
    fetch_max_wait_ms: int = Field(default=500, alias="fetch.max.wait.ms", ge=0, le=60_000)
    """Time in ms that a source waits for new records before it answers a Fetch request."""
    produce_timeout_ms: int = Field(default=10_000, alias="produce.timeout.ms", ge=100, le=600_000)
    """Time in ms that the mirror waits for the hub's answer to a request."""
    retry_backoff_ms: int = Field(default=1_000, alias="retry.backoff.ms", ge=10, le=600_000)
    """Time in ms that a partition waits after a failure before it is tried again."""
    gap_policy: GapPolicy = Field(default=GapPolicy.HALT, alias="gap.policy")
    """Treatment of records that a source deleted or replaced before they were copied. `halt` stops the partition until
    `pipeline mirror resume`; `skip` records the gap in `_mirror_gaps` and continues behind it."""
    compression_type: CompressionType = Field(default=CompressionType.PRODUCER, alias="compression.type")
    """Codec of batches in the replicas. `producer` keeps that of the source; `zstd` makes the mirror recompress batches
    of other codecs."""
    throttle_bytes_per_s: int | None = Field(
        default=None, alias="throttle.bytes.per.second", ge=MIN_THROTTLE, le=MAX_THROTTLE
    )
    """Largest number of bytes per second that all flows copy together, on average. Without a value: as many as they
    can."""
    topic_settings: tuple[str, ...] = Field(default=FOLLOWED_SETTINGS, alias="topic.settings", max_length=50)
    """Settings of topics that replicas take from their sources. An empty list: none."""
    topic_settings_interval_ms: int = Field(default=2_500, alias="topic.settings.interval.ms", ge=100, le=3_600_000)
    """Interval in ms between reads of the settings of a source's topics."""
    zookeeper_connect: str | None = Field(default=None, alias="zookeeper.connect", min_length=1)
    """Addresses of the hub's ZooKeeper servers, `host:port,...`, with an optional path (chroot) at the end. Set it to
    have several mirror processes share the work; a process without it does all work."""
    zookeeper_security: ZooKeeperSecurity = Field(default=OPEN_ZOOKEEPER, alias="zookeeper.security")
    """TLS and authentication of the connection to the hub's ZooKeeper: `zookeeper.ssl.client.enable`,
    `zookeeper.auth.username`, `zookeeper.set.acl` and so on, see docs/security/zookeeper.md."""
    group: str = Field(
        default="mirror", alias="mirror.group", min_length=1, max_length=MAX_NAME_LENGTH, pattern=r"^[A-Za-z0-9_-]+$"
    )
    """Name of the group of processes that share the work. All of them must have the same sources and flows."""
    zookeeper_session_timeout_ms: int = Field(3_000, alias="zookeeper.session.timeout.ms", ge=1000, le=60_000)
    """Time in ms without a sign of life after which the others take over the partitions of a process."""
    rebalance_interval_ms: int = Field(30_000, alias="mirror.rebalance.interval.ms", ge=100, le=3_600_000)
    """Interval in ms between looks at the byte rates, by which partitions are shared out."""
    datacenter: str | None = Field(default=None, alias="datacenter", min_length=1)
    """Name of the hub's cluster. Set it to have the mirror count what it copies, for the audit."""
    window_ms: int = Field(default=600_000, alias="audit.window.ms", ge=60_000, le=_HOUR_MS)
    """Length in ms of the windows of the counts; must divide an hour."""
    interval_ms: int = Field(default=10_000, alias="audit.interval.ms", ge=100, le=600_000)
    """Interval in ms between reports of the counts to the topic `_audit` of the hub."""
    group_offsets_enabled: bool = Field(default=False, alias="group.offsets.enabled")
    """True if committed offsets of groups are copied to the hub."""
    groups: tuple[str, ...] = Field(default=(".*",), alias="groups", min_length=1)
    """Regular expressions. The offsets of a group are copied if one of them matches its whole name."""
    groups_exclude: tuple[str, ...] = Field(default=(), alias="groups.exclude")
    """Regular expressions. The offsets of a group are not copied if one of them matches its whole name."""
    group_offsets_interval_ms: int = Field(default=2_000, alias="group.offsets.interval.ms", ge=100, le=3_600_000)
    """Pause in ms between two rounds over all groups of a source."""

    def require_equal_offsets(self, command: str) -> None:
        """Raise ConfigurationError if replicas have other offsets than their sources, which `command` needs."""
        if self.destination_mode is DestinationMode.APPEND:
            reason = f"is append, and {command} needs replicas that brokers of this project hold at equal offsets"
            raise ConfigurationError("destination.mode", reason)

    @property
    def followed_settings(self) -> tuple[str, ...]:
        """Settings that replicas take. Batches that are appended keep their times, whatever the source's type."""
        if self.destination_mode is DestinationMode.EXACT:
            return self.topic_settings
        return tuple(name for name in self.topic_settings if name != TIMESTAMP_TYPE)

    @field_validator("topics")
    @classmethod
    def _topics_can_be_mirrored(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        _check_can_be_mirrored(topics)
        return topics

    @model_validator(mode="after")
    def _group_offsets_are_valid_at_the_destination(self) -> Self:
        if self.group_offsets_enabled and self.destination_mode is DestinationMode.APPEND:
            raise ValueError(
                'group.offsets.enabled needs destination.mode = "exact": in append mode the offsets of a group mean '
                "other records at the destination; remove it, and start consumers there by time (OffsetsForTimes)"
            )
        return self

    @model_validator(mode="after")
    def _destination_refuses_older_copiers(self) -> Self:
        if self.zookeeper_connect is not None and self.destination_mode is DestinationMode.APPEND:
            raise ValueError(
                'zookeeper.connect needs destination.mode = "exact": only brokers of this project refuse a mirror '
                "process that others have replaced; remove it, and run one process"
            )
        return self

    @model_validator(mode="after")
    def _topics_are_chosen_in_one_way(self) -> Self:
        if not self.flows and not self.topics:
            raise ValueError("topics is missing; set it, or declare [[flows]]")
        for name, value in (("topics", self.topics), ("topics.exclude", self.exclude)):
            if self.flows and value:
                raise ValueError(f"{name} is set beside [[flows]]; move it into a table [[flows]]")
        return self

    @model_validator(mode="after")
    def _flows_are_distinct_and_have_sources(self) -> Self:
        for name, count in Counter(flow.name for flow in self.flows).items():
            if count > 1:
                raise ValueError(f"flows has {count} tables of the name {name}; give each flow a name of its own")
        names = [source.name for source in self.sources]
        for flow in self.flows:
            if flow.source not in names:
                raise ValueError(
                    f"flows has {flow.name} of source {flow.source}, and sources has {', '.join(names)} only"
                )
        return self

    @model_validator(mode="after")
    def _sources_have_names_of_their_own(self) -> Self:
        name, count = Counter(source.name for source in self.sources).most_common(1)[0]
        if count > 1:
            raise ValueError(f"sources has {count} tables of the name {name}; give each cluster a name of its own")
        return self

    @model_validator(mode="after")
    def _windows_of_copies_divide_an_hour(self) -> Self:
        if _HOUR_MS % self.window_ms:
            raise ValueError("audit.window.ms must divide an hour, because reports are made by the hour")
        return self

    @model_validator(mode="after")
    def _followed_settings_can_be_followed(self) -> Self:
        check_followed(self.topic_settings)
        return self

    @model_validator(mode="before")
    @classmethod
    def _gather_security(cls, settings: Any) -> Any:
        return gathered_zookeeper(gathered_http(gathered(settings, "destination.")))


def _check_can_be_mirrored(patterns: Iterable[str]) -> None:
    """Raise ValueError if a pattern asks for topics that are never mirrored."""
    for pattern in patterns:
        if is_of_its_cluster(without_escapes(pattern)):
            raise ValueError(f"has {pattern}, but such topics have a meaning in their own cluster alone; remove it")
