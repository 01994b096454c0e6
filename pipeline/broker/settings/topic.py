"""Declares the settings of a topic under Kafka's names: the topic's own values over the broker's defaults. Pure.

Every declared setting takes effect; every other name is refused, so that no setting is accepted and then ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationError

from pipeline.broker.settings.admission import Admission
from pipeline.broker.settings.broker import FIELDS, BrokerConfig, CompressionType, TimestampType
from pipeline.broker.settings.contract import TOPIC_NAME, Contract, Demand, SubjectStrategy
from pipeline.errors import ConfigurationError
from pipeline.model import MAX_INT64
from pipeline.promotion import MIRROR_PROMOTED, Promotion
from pipeline.provenance import MIRROR_PARTITIONS, Provenance
from pipeline.records.compression import Codec
from pipeline.settings import SettingsModel, hint, reason_of

LOG_APPEND_TIME = "LogAppendTime"
PROVENANCES_KEPT = 128
"""Texts of `mirror.partitions` that are not parsed again for each description or change of a topic's settings."""


@dataclass(frozen=True, slots=True)
class DefaultOf:
    """Marks a topic setting whose default is a broker setting of this name."""

    setting: str


def _default_of(setting: str, *, alias: str) -> Any:
    """Declare a topic setting with the bounds, the text and (as default) the value of this broker setting."""
    declared = BrokerConfig.model_fields[FIELDS[setting]]
    field = Field(alias=alias, description=BrokerConfig.descriptions()[setting])
    field.metadata = [*declared.metadata, DefaultOf(setting)]
    return field


def _check_throttled_replicas(value: str) -> str:
    for part in value.split(",") if value not in {"", "*"} else ():
        partition, separator, broker = part.strip().partition(":")
        if not (separator and partition.isdecimal() and broker.isdecimal()):
            raise ValueError("is a list of PARTITION:BROKER with commas between, or *")
    return value


@lru_cache(maxsize=PROVENANCES_KEPT)
def _parse_provenance(value: str) -> Provenance:
    return Provenance.parse(value)


def _check_provenance(value: str) -> str:
    try:
        _parse_provenance(value)
    except ConfigurationError as error:
        raise ValueError(error.reason) from error
    return value


def _check_promotion(value: str) -> str:
    try:
        Promotion.parse(value)
    except ConfigurationError as error:
        raise ValueError(error.reason) from error
    return value


class TopicSettings(SettingsModel):
    """The settings of one topic, complete."""

    service: ClassVar[str] = "topic"

    segment_bytes: int = _default_of("log.segment.bytes", alias="segment.bytes")
    segment_ms: int = _default_of("log.roll.ms", alias="segment.ms")
    flush_messages: int = _default_of("log.flush.interval.messages", alias="flush.messages")
    flush_ms: int = _default_of("log.flush.interval.ms", alias="flush.ms")
    max_message_bytes: int = _default_of("message.max.bytes", alias="max.message.bytes")
    index_interval_bytes: int = _default_of("log.index.interval.bytes", alias="index.interval.bytes")
    message_timestamp_type: TimestampType = _default_of("log.message.timestamp.type", alias="message.timestamp.type")
    mirror_source: str | None = Field(default=None, alias="mirror.source", min_length=1, max_length=1024)
    """Source of a mirrored topic, set by the mirror. Only a producer that keeps the source's offsets may write to the
    topic. Kafka has no such setting."""
    mirror_partitions: Annotated[str | None, AfterValidator(_check_provenance)] = Field(
        default=None, alias="mirror.partitions"
    )
    """Source partition of each partition of a mirrored topic, as JSON, set by the mirror. A partition accepts only
    batches of its own source partition. Kafka has no such setting."""
    mirror_promoted: Annotated[str | None, AfterValidator(_check_promotion)] = Field(
        default=None, alias="mirror.promoted"
    )
    """Time at which a mirrored topic was promoted, and the log end offset of each partition at that time, as JSON, set
    by `pipeline mirror promote`. The topic accepts no more batches of mirrors. Kafka has no such setting."""
    retention_ms: int = _default_of("log.retention.ms", alias="retention.ms")
    retention_bytes: int = _default_of("log.retention.bytes", alias="retention.bytes")
    file_delete_delay_ms: int = _default_of("log.segment.delete.delay.ms", alias="file.delete.delay.ms")
    visibility: Literal["appended", "flushed"] = Field(default="appended", alias="visibility")
    """State from which consumers can read a record: `appended` to the log, or `flushed`, when the record survives a
    power failure. Kafka has no such setting."""
    cleanup_policy: str = _default_of("log.cleanup.policy", alias="cleanup.policy")
    min_cleanable_dirty_ratio: float = _default_of("log.cleaner.min.cleanable.ratio", alias="min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = _default_of("log.cleaner.min.compaction.lag.ms", alias="min.compaction.lag.ms")
    max_compaction_lag_ms: int = _default_of("log.cleaner.max.compaction.lag.ms", alias="max.compaction.lag.ms")
    delete_retention_ms: int = _default_of("log.cleaner.delete.retention.ms", alias="delete.retention.ms")
    compression_type: CompressionType = _default_of("compression.type", alias="compression.type")
    compression_gzip_level: int = _default_of("compression.gzip.level", alias="compression.gzip.level")
    compression_lz4_level: int = _default_of("compression.lz4.level", alias="compression.lz4.level")
    compression_zstd_level: int = _default_of("compression.zstd.level", alias="compression.zstd.level")
    message_timestamp_before_max_ms: int = _default_of(
        "log.message.timestamp.before.max.ms", alias="message.timestamp.before.max.ms"
    )
    message_timestamp_after_max_ms: int = _default_of(
        "log.message.timestamp.after.max.ms", alias="message.timestamp.after.max.ms"
    )
    min_insync_replicas: int = _default_of("min.insync.replicas", alias="min.insync.replicas")
    unclean_leader_election: bool = _default_of(
        "unclean.leader.election.enable", alias="unclean.leader.election.enable"
    )
    leader_throttled_replicas: Annotated[str, AfterValidator(_check_throttled_replicas)] = Field(
        default="", alias="leader.replication.throttled.replicas"
    )
    """Replicas to which leaders send within `leader.replication.throttled.rate`: `*`, or `PARTITION:BROKER,...`."""
    follower_throttled_replicas: Annotated[str, AfterValidator(_check_throttled_replicas)] = Field(
        default="", alias="follower.replication.throttled.replicas"
    )
    """Replicas that fetch within `follower.replication.throttled.rate`: `*`, or `PARTITION:BROKER,...`."""
    key_schema_validation: bool = Field(default=False, alias="confluent.key.schema.validation")
    """True if every key must bear the id of a schema of its subject. Other batches are refused with INVALID_RECORD."""
    value_schema_validation: bool = Field(default=False, alias="confluent.value.schema.validation")
    """True if every value must bear the id of a schema of its subject. Other batches are refused with
    INVALID_RECORD."""
    key_subject_strategy: SubjectStrategy = Field(default=TOPIC_NAME, alias="confluent.key.subject.name.strategy")
    """Subject of keys: `TopicNameStrategy` is `TOPIC-key`, `RecordNameStrategy` the full name of the record,
    `TopicRecordNameStrategy` is `TOPIC-NAME`."""
    value_subject_strategy: SubjectStrategy = Field(default=TOPIC_NAME, alias="confluent.value.subject.name.strategy")
    """Subject of values: `TopicNameStrategy` is `TOPIC-value`, `RecordNameStrategy` the full name of the record,
    `TopicRecordNameStrategy` is `TOPIC-NAME`."""
    key_schema_decode: bool = Field(default=False, alias="pipeline.key.schema.decode")
    """True if every key must also be a whole datum of its Avro schema; implies `confluent.key.schema.validation`.
    Kafka has no such setting."""
    value_schema_decode: bool = Field(default=False, alias="pipeline.value.schema.decode")
    """True if every value must also be a whole datum of its Avro schema; implies `confluent.value.schema.validation`.
    Kafka has no such setting."""

    @property
    def is_compacted(self) -> bool:
        """True if `cleanup.policy` contains `compact`."""
        return "compact" in self.cleanup_policy

    @property
    def is_deleted_from(self) -> bool:
        """True if `cleanup.policy` contains `delete`."""
        return "delete" in self.cleanup_policy

    @cached_property
    def provenance(self) -> Provenance | None:
        """The source partitions that the partitions are copies of; None if the topic does not say."""
        return None if self.mirror_partitions is None else _parse_provenance(self.mirror_partitions)

    @cached_property
    def promotion(self) -> Promotion | None:
        """The promotion of the topic; None if it was not promoted."""
        return None if self.mirror_promoted is None else Promotion.parse(self.mirror_promoted)

    @cached_property
    def contract(self) -> Contract | None:
        """The topic's demands on schema ids; None if it has none."""
        key = value = None
        if self.key_schema_validation or self.key_schema_decode:
            key = Demand(strategy=self.key_subject_strategy, decodes=self.key_schema_decode)
        if self.value_schema_validation or self.value_schema_decode:
            value = Demand(strategy=self.value_subject_strategy, decodes=self.value_schema_decode)
        return None if key is None and value is None else Contract(key=key, value=value)

    @cached_property
    def admission(self) -> Admission:
        """The topic's demands on batches of producers."""
        kept = self.compression_type == "producer"
        name = "none" if self.compression_type == "uncompressed" else self.compression_type
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        before_ms, after_ms = self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms
        return Admission(
            max_batch_bytes=self.max_message_bytes,
            codec=None if kept else Codec[name.upper()],
            level=levels.get(name),
            needs_keys=self.is_compacted,
            is_append_time=self.message_timestamp_type == LOG_APPEND_TIME,
            before_max_ms=None if before_ms == MAX_INT64 else before_ms,
            after_max_ms=None if after_ms == MAX_INT64 else after_ms,
        )


BROKER_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        str(field.alias): mark.setting
        for field in TopicSettings.model_fields.values()
        for mark in field.metadata
        if isinstance(mark, DefaultOf)
    }
)
"""The broker setting that is the default of a topic setting. Other topic settings have their own default."""

KEEPING_ALL: Mapping[str, str] = MappingProxyType(
    {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "unclean.leader.election.enable": "false",
    }
)
"""Topic settings that delete no record, and exclude unclean elections."""


def topic_settings(overrides: Mapping[str, str | None], broker: BrokerConfig) -> TopicSettings:
    """Return the topic's own settings over the broker's. Raises ValueError, which names each wrong setting."""
    try:
        return TopicSettings.model_validate({**_defaults(broker), **overrides})
    except ValidationError as error:
        raise ValueError("; ".join(_explain(item) for item in error.errors(include_url=False))) from error


def readable_settings(overrides: Mapping[str, str], broker: BrokerConfig) -> tuple[TopicSettings, tuple[str, ...]]:
    """Return stored settings as `topic_settings` does, but the broker's value for each invalid one, and its name.

    An invalid `mirror.partitions` counts as one without entries, an invalid `mirror.promoted` as one without `ends`.
    """
    try:
        return TopicSettings.model_validate({**_defaults(broker), **overrides}), ()
    except ValidationError as error:
        wrong = tuple(sorted({str(item["loc"][0]) for item in error.errors(include_url=False)}))
        usable = {key: value for key, value in overrides.items() if key not in wrong}
        if MIRROR_PARTITIONS in wrong:
            usable[MIRROR_PARTITIONS] = (
                Provenance().encode()
            )  # no copy is accepted: any might be that of another source
        if MIRROR_PROMOTED in wrong:
            usable[MIRROR_PROMOTED] = Promotion(at_ms=0).encode()  # no copy is accepted, as after any promotion
        return TopicSettings.model_validate({**_defaults(broker), **usable}), wrong


def _defaults(broker: BrokerConfig) -> dict[str, Any]:
    return {name: getattr(broker, FIELDS[setting]) for name, setting in BROKER_DEFAULTS.items()}


def _explain(item: Any) -> str:
    key = str(item["loc"][0])
    if item["type"] == "extra_forbidden":
        return f"Unknown topic config name: {key}{hint(key, TopicSettings)}"
    return f"Invalid value {item['input']} for configuration {key}: {reason_of(item)}"
