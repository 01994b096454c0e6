"""The settings of a topic, under Kafka's names: what the topic says itself, over what the broker says for all. Pure.

All are honoured; every other name is refused, so that a setting is never accepted and then ignored by mistake.
"""

import difflib
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pipeline.broker.settings.admission import Admission
from pipeline.broker.settings.broker import (
    BrokerConfig,
    check_cleanup_policies,
    check_gzip_level,
    check_throttled_replicas,
)
from pipeline.records.compression import Codec
from pipeline.settings import MAX_INT64

MAX_INT32 = 2**31 - 1
LOG_APPEND_TIME = "LogAppendTime"


class TopicSettings(BaseModel):
    """The settings of one topic, complete."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    segment_bytes: int = Field(alias="segment.bytes", ge=1024, le=MAX_INT32)
    segment_ms: int = Field(alias="segment.ms", ge=1, le=MAX_INT64)
    flush_messages: int = Field(alias="flush.messages", ge=1, le=MAX_INT64)
    flush_ms: int = Field(alias="flush.ms", ge=0, le=MAX_INT64)
    max_message_bytes: int = Field(alias="max.message.bytes", ge=0, le=MAX_INT32)
    index_interval_bytes: int = Field(alias="index.interval.bytes", ge=0, le=MAX_INT32)
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = Field(alias="message.timestamp.type")
    mirror_source: str | None = Field(default=None, alias="mirror.source", min_length=1, max_length=1024)
    """Set: a mirror of this topic elsewhere. Read-only but for producers that keep the offsets of its source."""
    retention_ms: int = Field(alias="retention.ms", ge=-1, le=MAX_INT64)
    retention_bytes: int = Field(alias="retention.bytes", ge=-1, le=MAX_INT64)
    file_delete_delay_ms: int = Field(alias="file.delete.delay.ms", ge=0, le=MAX_INT64)
    visibility: Literal["appended", "flushed"] = Field(default="appended", alias="visibility")
    """When consumers see a record. `flushed` (ours, from the paper): once it would survive a power failure."""
    cleanup_policy: Annotated[str, AfterValidator(check_cleanup_policies)] = Field(alias="cleanup.policy")
    min_cleanable_dirty_ratio: float = Field(alias="min.cleanable.dirty.ratio", ge=0, le=1)
    min_compaction_lag_ms: int = Field(alias="min.compaction.lag.ms", ge=0, le=MAX_INT64)
    max_compaction_lag_ms: int = Field(alias="max.compaction.lag.ms", ge=1, le=MAX_INT64)
    delete_retention_ms: int = Field(alias="delete.retention.ms", ge=0, le=MAX_INT64)
    compression_type: Literal["uncompressed", "producer", "gzip", "snappy", "lz4", "zstd"] = Field(
        alias="compression.type"
    )
    compression_gzip_level: Annotated[int, AfterValidator(check_gzip_level)] = Field(
        alias="compression.gzip.level", ge=-1, le=9
    )
    compression_lz4_level: int = Field(alias="compression.lz4.level", ge=1, le=17)
    compression_zstd_level: int = Field(alias="compression.zstd.level", ge=-131_072, le=22)
    message_timestamp_before_max_ms: int = Field(alias="message.timestamp.before.max.ms", ge=0, le=MAX_INT64)
    message_timestamp_after_max_ms: int = Field(alias="message.timestamp.after.max.ms", ge=0, le=MAX_INT64)
    min_insync_replicas: int = Field(alias="min.insync.replicas", ge=1, le=MAX_INT32)
    unclean_leader_election: bool = Field(alias="unclean.leader.election.enable")
    leader_throttled_replicas: Annotated[str, AfterValidator(check_throttled_replicas)] = Field(
        default="", alias="leader.replication.throttled.replicas"
    )
    follower_throttled_replicas: Annotated[str, AfterValidator(check_throttled_replicas)] = Field(
        default="", alias="follower.replication.throttled.replicas"
    )

    @property
    def is_compacted(self) -> bool:
        """Does `cleanup.policy` contain `compact`?"""
        return "compact" in self.cleanup_policy

    @property
    def is_deleted_from(self) -> bool:
        """Does `cleanup.policy` contain `delete`?"""
        return "delete" in self.cleanup_policy

    @cached_property
    def admission(self) -> Admission:
        """What the topic demands of the batches of producers."""
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
        "min.insync.replicas": "min.insync.replicas",
        "unclean.leader.election.enable": "unclean.leader.election.enable",
        "segment.bytes": "log.segment.bytes",
        "segment.ms": "log.roll.ms",
        "flush.messages": "log.flush.interval.messages",
        "flush.ms": "log.flush.interval.ms",
        "max.message.bytes": "message.max.bytes",
        "index.interval.bytes": "log.index.interval.bytes",
        "message.timestamp.type": "log.message.timestamp.type",
        "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
        "compression.type": "compression.type",
        "compression.gzip.level": "compression.gzip.level",
        "compression.lz4.level": "compression.lz4.level",
        "compression.zstd.level": "compression.zstd.level",
        "retention.ms": "log.retention.ms",
        "retention.bytes": "log.retention.bytes",
        "file.delete.delay.ms": "log.segment.delete.delay.ms",
        "cleanup.policy": "log.cleanup.policy",
        "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
        "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
        "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
        "delete.retention.ms": "log.cleaner.delete.retention.ms",
    }
)
"""From a topic's setting to that of the broker which is its default. The others have the default of their field."""

KEEPING_ALL: Mapping[str, str] = MappingProxyType(
    {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "unclean.leader.election.enable": "false",
    }
)
"""Settings of a topic by which no record is ever deleted, nor lost to an unclean election."""

_BROKER_FIELDS = {str(field.alias): name for name, field in BrokerConfig.model_fields.items()}


def topic_settings(overrides: Mapping[str, str | None], broker: BrokerConfig) -> TopicSettings:
    """The topic's own settings over the broker's. Raises ValueError with a sentence that names the wrong setting."""
    try:
        return TopicSettings.model_validate({**_defaults(broker), **overrides})
    except ValidationError as error:
        raise ValueError("; ".join(_explain(item) for item in error.errors(include_url=False))) from error


def readable_settings(overrides: Mapping[str, str], broker: BrokerConfig) -> tuple[TopicSettings, tuple[str, ...]]:
    """As `topic_settings`, for what is stored already: what cannot be used falls back to the broker's setting.

    Also returns the names that were left out, for a warning.
    """
    try:
        return TopicSettings.model_validate({**_defaults(broker), **overrides}), ()
    except ValidationError as error:
        wrong = tuple(sorted({str(item["loc"][0]) for item in error.errors(include_url=False)}))
        usable = {key: value for key, value in overrides.items() if key not in wrong}
        return TopicSettings.model_validate({**_defaults(broker), **usable}), wrong


def _defaults(broker: BrokerConfig) -> dict[str, Any]:
    return {name: getattr(broker, _BROKER_FIELDS[setting]) for name, setting in BROKER_DEFAULTS.items()}


def _explain(item: Any) -> str:
    key = str(item["loc"][0])
    if item["type"] == "extra_forbidden":
        names = [str(field.alias) for field in TopicSettings.model_fields.values()]
        near = difflib.get_close_matches(key, names, n=1)
        return f"Unknown topic config name: {key}" + (f"; did you mean {near[0]}?" if near else "")
    reason = str(item["msg"]).removeprefix("Value error, ")
    return f"Invalid value {item['input']} for configuration {key}: {reason}"
