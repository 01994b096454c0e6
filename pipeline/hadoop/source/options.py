"""Options of the source: names and meaning of Spark's Kafka source where it has them. Pure.

Differences, kept for programs that rely on them: `startingOffsets` is `earliest` for streams too, headers are included
unless `includeHeaders=false`, and `kafka.isolation.level` is `read_committed`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, IsolationLevel
from pipeline.errors import ConfigurationError
from pipeline.hadoop.ranges.plan import BadBatch
from pipeline.hadoop.ranges.spark_security import (
    LOGIN_KEYS,
    SECURITY_KEYS,
    is_security_option,
    registry_login_of,
    security_of,
)
from pipeline.net.http.login import NO_LOGIN, HttpLogin
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.records.memory import MAX_OPENED_BYTES, MIN_OPENED_BYTES
from pipeline.settings import parse_addresses

DEFAULT_MAX_RECORDS_PER_PARTITION: Final = 50_000_000
DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000

OffsetsByTopic = dict[str, dict[int, int]]
"""Offsets, or times in ms, by topic and partition."""

_CLIENT_KEYS: Final = {
    "kafka.client.id": "client_id",
    "kafka.request.timeout.ms": "request_timeout_ms",
    "kafka.default.api.timeout.ms": "default_api_timeout_ms",
    "kafka.retry.backoff.ms": "retry_backoff_ms",
    "kafka.retry.backoff.max.ms": "retry_backoff_max_ms",
    "kafka.metadata.max.age.ms": "metadata_max_age_ms",
}
_CONSUMER_KEYS: Final = {
    "kafka.fetch.max.wait.ms": "max_wait_ms",
    "kafka.fetch.min.bytes": "min_bytes",
    "kafka.fetch.max.bytes": "max_bytes",
    "kafka.max.partition.fetch.bytes": "max_partition_bytes",
}
_OTHER_KEYS: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxRecordsPerTask",
    "includeHeaders",
    "failOnDataLoss",
    "includeBatches",
    "maxOpenedBytes",
    "onBadBatch",
    "valueFormat",
    "valueSubject",
    "valueSchemaVersion",
    "onBadRecord",
    "schema.registry.url",
    *LOGIN_KEYS,
)
KEYS: Final = (
    "kafka.bootstrap.servers",
    "kafka.isolation.level",
    *_CLIENT_KEYS,
    *_CONSUMER_KEYS,
    *SECURITY_KEYS,
    *_OTHER_KEYS,
)
"""Names of all options."""

_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_UNITS_MS: Final = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Place where reading begins or ends, by one of the fields; `named` is EARLIEST or LATEST.

    In `offsets`, EARLIEST and LATEST stand for bounds of the log. `times` are in ms; `time_ms` is that of all
    partitions.
    """

    named: int | None = None
    offsets: OffsetsByTopic | None = None
    times: OffsetsByTopic | None = None
    time_ms: int | None = None

    def times_of(self, topic: str, partitions: Mapping[int, object]) -> dict[int, int]:
        """Return by partition of a topic the time that the position is given by, if it is."""
        if self.time_ms is not None:
            return dict.fromkeys(partitions, self.time_ms)
        return dict((self.times or {}).get(topic, {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Topics to read: named, by a pattern of the whole name, or partitions by topic."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """Values as columns: the schema registry, and the schema that values are evolved to."""

    registry: tuple[str, ...]
    login: HttpLogin = NO_LOGIN
    subject: str | None
    version: int | None
    fails_on_bad_record: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Checked options."""

    client: ClientConfig
    consumer: ConsumerConfig
    subscription: Subscription
    starting: Position
    ending: Position
    fails_without_time: bool
    fail_on_data_loss: bool
    include_headers: bool
    include_batches: bool
    min_partitions: int | None
    max_records_per_partition: int
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    max_opened_bytes: int
    on_bad_batch: BadBatch
    values: ValueOptions | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parse options, whose names Spark passes in lower case. Raises ConfigurationError that names the option."""
        given = _Given({key.lower(): value for key, value in options.items()})
        given.refuse_unknown()
        include_batches = given.flag("includeBatches", default=False)
        on_bad_batch = BadBatch(given.one_of("onBadBatch", *(each.value for each in BadBatch)))
        if on_bad_batch is BadBatch.ROW and not include_batches:
            raise ConfigurationError("onBadBatch", "'row' needs includeBatches=true")
        values = _values(given)
        if on_bad_batch is BadBatch.ROW and values is not None:
            raise ConfigurationError("onBadBatch", "'row' yields bytes: it needs valueFormat=binary")
        least, most = (given.count(f"{name}OffsetsPerTrigger") for name in ("min", "max"))
        if least is not None and most is not None and least > most:
            raise ConfigurationError("minOffsetsPerTrigger", f"{least} is more than maxOffsetsPerTrigger, {most}")
        max_records = "maxRecordsPerPartition" if given.get("maxRecordsPerPartition") else "maxRecordsPerTask"
        return cls(
            client=given.client(),
            consumer=given.consumer(),
            subscription=_subscription(given),
            starting=_position(given, "starting", "earliest"),
            ending=_position(given, "ending", "latest"),
            fails_without_time=given.one_of("startingOffsetsByTimestampStrategy", "error", "latest") == "error",
            fail_on_data_loss=given.flag("failOnDataLoss", default=True),
            include_headers=given.flag("includeHeaders", default=True),
            include_batches=include_batches,
            min_partitions=given.count("minPartitions"),
            max_records_per_partition=given.count(max_records) or DEFAULT_MAX_RECORDS_PER_PARTITION,
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_trigger_delay_ms=given.duration_ms("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
            max_opened_bytes=given.count("maxOpenedBytes", MAX_OPENED_BYTES) or MIN_OPENED_BYTES,
            on_bad_batch=on_bad_batch,
            values=values,
        )


class _Given:
    """Options as text, by their names in lower case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def get(self, name: str) -> str | None:
        """Return the text, None if the option is not given or empty."""
        return self._options.get(name.lower()) or None

    def refuse_unknown(self) -> None:
        known = {key.lower() for key in KEYS} | {"path"}
        unknown = {key for key in self._options if key not in known and not is_security_option(key)}
        if unknown:
            raise ConfigurationError(sorted(unknown)[0], f"is not an option; these are: {', '.join(KEYS)}")

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.get(name) or str(default)
        if text.lower() not in {"true", "false"}:
            raise ConfigurationError(name, f"'{text}' is neither true nor false")
        return text.lower() == "true"

    def one_of(self, name: str, *values: str) -> str:
        """Return the option in lower case, by default the first of the values."""
        text = (self.get(name) or values[0]).lower()
        if text not in values:
            raise ConfigurationError(name, f"'{text}' is none of {', '.join(values)}")
        return text

    def count(self, name: str, greatest: int | None = None) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise ConfigurationError(name, f"'{text}' is not a positive number")
        if greatest is not None and int(text) > greatest:
            raise ConfigurationError(name, f"'{text}' is more than {greatest}, the most that a batch may hold")
        return int(text)

    def duration_ms(self, name: str, default_ms: int) -> int:
        text = self.get(name)
        if text is None:
            return default_ms
        match = _DURATION.fullmatch(text.strip().lower())
        if match is None:
            raise ConfigurationError(name, f"'{text}' is no duration like 500ms, 30s, 15m or 1h")
        return int(match[1]) * _UNITS_MS[match[2]]

    def json(self, name: str, text: str, kind: str) -> dict[str, dict[int, int]]:
        """Return numbers by topic and partition."""
        try:
            return {
                str(topic): {int(partition): int(number) for partition, number in numbers.items()}
                for topic, numbers in json.loads(text).items()
            }
        except (ValueError, AttributeError, TypeError) as error:
            raise ConfigurationError(name, f"'{text}' is not {kind}") from error

    def client(self) -> ClientConfig:
        bootstrap = self.get("kafka.bootstrap.servers")
        if bootstrap is None:
            raise ConfigurationError("kafka.bootstrap.servers", "is missing")
        try:
            addresses = parse_addresses(bootstrap)
        except ValueError as error:
            raise ConfigurationError("kafka.bootstrap.servers", str(error)) from error
        settings = {"client_id": "pipeline-spark"} | self._settings(_CLIENT_KEYS, ClientConfig)
        security = security_of(self._options)
        return ClientConfig(bootstrap=addresses, security=security, **settings)  # type: ignore[arg-type]

    def registry_login(self) -> HttpLogin:
        return registry_login_of(self._options)

    def consumer(self) -> ConsumerConfig:
        level = self.one_of("kafka.isolation.level", "read_committed", "read_uncommitted")
        settings = self._settings(_CONSUMER_KEYS, ConsumerConfig)
        return ConsumerConfig(isolation_level=IsolationLevel[level.upper()], **settings)  # type: ignore[arg-type]

    def _settings(self, keys: Mapping[str, str], kind: type[ClientConfig] | type[ConsumerConfig]) -> dict[str, object]:
        """Return settings of a client by their fields. Those that are numbers must be numbers."""
        texts = {each.name for each in fields(kind) if each.type is str or each.type == "str"}
        settings: dict[str, object] = {}
        for key, field in keys.items():
            text = self.get(key)
            if text is None:
                continue
            if field not in texts and not text.isdecimal():
                raise ConfigurationError(key, f"'{text}' is not a number")
            settings[field] = text if field in texts else int(text)
        return settings


def _subscription(given: _Given) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    chosen = [name for name in names if given.get(name)]
    if len(chosen) != 1:
        reason = "is missing, and so are subscribePattern and assign" if not chosen else f"stands beside {chosen[1]}"
        raise ConfigurationError(chosen[0] if chosen else "subscribe", f"{reason}: give one of the three")
    text = given.get(chosen[0]) or ""
    if chosen == ["subscribe"]:
        return Subscription(topics=tuple(topic.strip() for topic in text.split(",") if topic.strip()))
    if chosen == ["subscribePattern"]:
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigurationError("subscribePattern", f"'{text}' is no regular expression: {error}") from error
        return Subscription(pattern=text)
    try:
        partitions = {str(topic): tuple(sorted(map(int, numbers))) for topic, numbers in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigurationError("assign", f"'{text}' is not JSON topic to list of partitions") from error
    return Subscription(topics=tuple(partitions), partitions=partitions)


def _position(given: _Given, side: str, default: str) -> Position:
    """Return the position of one side. A time for all partitions goes before times, and these before offsets."""
    name = f"{side}Timestamp"
    if text := given.get(name):
        if not text.isdecimal():
            raise ConfigurationError(name, f"'{text}' is not a time in ms since 1970")
        return Position(time_ms=int(text))
    name = f"{side}OffsetsByTimestamp"
    if text := given.get(name):
        return Position(times=given.json(name, text, "JSON topic to partition to time in ms since 1970"))
    name = f"{side}Offsets"
    text = given.get(name) or default
    if text.lower() in {"earliest", "latest"}:
        return Position(named=EARLIEST if text.lower() == "earliest" else LATEST)
    return Position(offsets=given.json(name, text, "earliest, latest or JSON topic to partition to offset"))


def _values(given: _Given) -> ValueOptions | None:
    urls = tuple(url.strip() for url in (given.get("schema.registry.url") or "").split(",") if url.strip())
    if given.one_of("valueFormat", "binary", "avro") == "binary":
        return None
    if not urls:
        raise ConfigurationError("schema.registry.url", "is missing: valueFormat=avro needs it")
    return ValueOptions(
        registry=urls,
        login=given.registry_login(),
        subject=given.get("valueSubject"),
        version=given.count("valueSchemaVersion"),
        fails_on_bad_record=given.one_of("onBadRecord", "fail", "null") == "fail",
    )
