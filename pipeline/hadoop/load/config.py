"""Settings of a load, and of the loads of many topics."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from pipeline.client.cluster.config import IsolationLevel
from pipeline.errors import ConfigurationError
from pipeline.hadoop.commit.layout import PathFormat
from pipeline.net.http.login import NO_LOGIN, HttpLogin, gathered_login
from pipeline.net.http.security import OPEN_HTTP, HttpSecurity, gathered_http
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity, gathered
from pipeline.records.memory import MAX_OPENED_BYTES, MIN_OPENED_BYTES
from pipeline.records.tally import DEFAULT_WINDOW_MS, HOUR_MS
from pipeline.settings import Addresses, SettingsModel

DAY_MS = 24 * HOUR_MS

SubjectStrategy = Literal["TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy"]


class LoadConfig(SettingsModel):
    """Settings of a load: its topic and its files."""

    service: ClassVar[str] = "load"

    bootstrap: Annotated[Addresses, Field(alias="bootstrap.servers")]
    """Addresses of brokers of the cluster, `host:port,...`; option `-b`."""
    security: ClientSecurity = Field(default=OPEN_SECURITY, alias="security")
    """TLS and SASL of the connections: `security.protocol`, `sasl.username` and so on, see docs/security.md."""
    topic: Annotated[str, Field(alias="topic")]
    """Topic to load; option `--topic`."""
    root: Annotated[str, Field(alias="root", min_length=1)]
    """Directory that holds the topics: `file:///path`, `hdfs://host:port/path`, `s3://bucket/prefix`, or an absolute
    path; option `--root`. See docs/load/stores.md."""
    format: Annotated[Literal["avro", "parquet"], Field(alias="format")] = "parquet"
    """Format of the files; option `--format`."""
    path_format: Annotated[PathFormat | None, Field(alias="path.format")] = None
    """Folders of data files, by the hour of the records' timestamps in UTC: `hourly/YYYY/MM/DD/HH` or
    `hive/dt=YYYY-MM-DD/hour=HH`. By default those of the topic's last load, at first `hourly`."""
    table: Annotated[Literal["manifest", "iceberg"], Field(alias="table")] = "manifest"
    """Place of the commits: `manifest` is a file beside the data, `iceberg` a table in a catalog (`format=parquet`);
    option `--table`."""
    iceberg_catalog: Annotated[dict[str, str] | None, Field(alias="iceberg.catalog", repr=False)] = None
    """Properties of the catalog: `iceberg.catalog.type`, `iceberg.catalog.uri` and others of pyiceberg, by default an
    SQLite file below `root`. Secrets may stand elsewhere: `${env:NAME}`, `${file:PATH:KEY}` or
    `${directory:DIR:FILE}`."""
    value_format: Annotated[Literal["avro", "binary"], Field(alias="value.format")] = "avro"
    """Format of the records' values: `avro` is a schema id and an Avro datum, `binary` keeps the bytes."""
    codec: Annotated[Literal["null", "snappy", "deflate", "zstandard"], Field(alias="codec")] = "snappy"
    """Codec of the files. In Parquet `deflate` is gzip."""
    registry: Annotated[tuple[str, ...], Field(alias="schema.registry.url")] = ()
    """URLs of schema registries, with commas between them; option `--registry`. Needed for `value.format=avro`."""
    login: HttpLogin = Field(default=NO_LOGIN, alias="login")
    """Password or token for the schema registries, and the authorities that are trusted: `basic.auth.user.info` and so
    on, see docs/security/http.md."""
    http: HttpSecurity = Field(default=OPEN_HTTP, alias="http.security")
    """TLS and users of a resident load's HTTP server: `http.ssl.keystore.location`, `http.users.file` and so on, see
    docs/security/http.md."""
    value_subject_name_strategy: Annotated[SubjectStrategy, Field(alias="value.subject.name.strategy")] = (
        "TopicNameStrategy"
    )
    """Strategy by which producers name the subjects of values, as in their own setting of this name. The columns of a
    Parquet file are those of the subject's latest version."""
    on_bad_record: Annotated[Literal["fail", "quarantine"], Field(alias="on.bad.record")] = "fail"
    """Treatment of records that cannot be decoded, and of batches that cannot be opened: `fail` ends the load,
    `quarantine` writes them to separate files."""
    fail_on_data_loss: Annotated[bool, Field(alias="fail.on.data.loss")] = True
    """True if a load fails when offsets were deleted before they were loaded. Otherwise it records them as skipped."""
    accept_truncation: Annotated[tuple[str, ...], Field(alias="accept.truncation")] = ()
    """Partitions that are loaded on although their source was truncated or restored: `PARTITION@OFFSET,...`, with the
    next offset to load. Records that the topic now has before that offset are given up."""
    quarantine_max_records: Annotated[int, Field(alias="quarantine.max.records", ge=0, le=10**10)] = 100_000
    """Maximum records that one load may set aside. With more of them nothing is committed."""
    start_timestamp_ms: Annotated[int | None, Field(alias="start.timestamp.ms", ge=0)] = None
    """Time in ms since 1970 at which a load begins with partitions that no manifest contains, by default with their
    first record."""
    isolation_level: Annotated[Literal["read_committed", "read_uncommitted"], Field(alias="isolation.level")] = (
        "read_committed"
    )
    """Records to load: `read_committed` leaves out aborted transactions, and stops before the first open one."""
    window_ms: Annotated[int, Field(alias="window.ms", ge=1000, le=HOUR_MS)] = DEFAULT_WINDOW_MS
    """Length in ms of the windows of the counts, equal to `audit.window.ms`; must divide an hour, and stay the same for
    a topic."""
    max_records_per_task: Annotated[int, Field(alias="max.records.per.task", ge=1000, le=10**10)] = 10_000_000
    """Maximum records of one Spark task, which takes 8 to 256 MB of the log."""
    max_opened_bytes: Annotated[int, Field(alias="max.opened.bytes", ge=1, le=MAX_OPENED_BYTES)] = MIN_OPENED_BYTES
    """Maximum size in bytes of one decompressed batch. A larger batch cannot be opened: see
    `on.bad.record`."""
    store_timeout_ms: Annotated[int, Field(alias="store.timeout.ms", ge=1000, le=HOUR_MS)] = 120_000
    """Time in ms after which an operation of a silent NameNode, S3 endpoint or Iceberg catalog fails."""
    kerberos_keytab: Annotated[Path | None, Field(alias="spark.kerberos.keytab")] = None
    """File with the key by which driver and tasks log in to an HDFS with Kerberos. It must be there on all machines of
    the load; see docs/load/stores.md."""
    kerberos_principal: Annotated[str | None, Field(alias="spark.kerberos.principal", min_length=1)] = None
    """Principal of `spark.kerberos.keytab`, `NAME@REALM`. A keytab with another one first is refused."""
    orphan_age_ms: Annotated[int, Field(alias="orphan.age.ms", ge=60_000, le=30 * DAY_MS)] = DAY_MS
    """Age in ms at which the files of a dead run are deleted. A run is dead once another one has committed instead."""

    @model_validator(mode="before")
    @classmethod
    def _gather_catalog(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        prefix = "iceberg.catalog."
        catalog = {key.removeprefix(prefix): str(value) for key, value in settings.items() if key.startswith(prefix)}
        others = {key: value for key, value in settings.items() if not key.startswith(prefix)}
        return others | ({"iceberg.catalog": catalog} if catalog else {})

    @model_validator(mode="before")
    @classmethod
    def _split_lists(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        lists = {name: settings.get(name) for name in ("schema.registry.url", "accept.truncation")}
        return settings | {
            name: [item.strip() for item in text.split(",") if item.strip()]
            for name, text in lists.items()
            if isinstance(text, str)
        }

    @model_validator(mode="after")
    def _window_divides_an_hour(self) -> Self:
        if HOUR_MS % self.window_ms:
            raise ValueError("window.ms must divide an hour, because the audit's reports are made by the hour")
        return self

    @property
    def isolation(self) -> IsolationLevel:
        """Level at which brokers are asked."""
        return IsolationLevel[self.isolation_level.upper()]

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """See SettingsModel."""
        config = super().from_settings(settings)
        if config.table == "iceberg" and config.format != "parquet":
            raise ConfigurationError("format", "must be parquet with table=iceberg")
        if config.value_format == "avro" and not config.registry:
            raise ConfigurationError(
                "schema.registry.url", "is missing: value.format=avro needs it (or set value.format=binary)"
            )
        if config.kerberos_principal is not None and config.kerberos_keytab is None:
            raise ConfigurationError("spark.kerberos.keytab", "is missing: spark.kerberos.principal needs it")
        config.accepted_offsets()
        return config

    def accepted_offsets(self) -> dict[int, int]:
        """Return the offsets of `accept.truncation` by partition. Raises ConfigurationError."""
        try:
            return {int(partition): int(offset) for partition, offset in (i.split("@") for i in self.accept_truncation)}
        except ValueError as error:
            reason = f"'{','.join(self.accept_truncation)}' is not PARTITION@OFFSET,..."
            raise ConfigurationError("accept.truncation", reason) from error

    @model_validator(mode="before")
    @classmethod
    def _gather_security(cls, settings: Any) -> Any:
        return gathered_login(gathered_http(gathered(settings)))


class LoadSelection(SettingsModel):
    """Settings of loads of several topics: which topics, and how many at once."""

    service: ClassVar[str] = "load"

    include: Annotated[str | None, Field(alias="topics.include", min_length=1)] = None
    """Regular expression: topics are loaded whose whole name matches, but none whose name begins with `_`; option
    `--topics`."""
    parallel: Annotated[int, Field(alias="topics.parallel", ge=1, le=256)] = 8
    """Maximum number of topics that are loaded side by side."""

    @model_validator(mode="after")
    def _include_is_an_expression(self) -> Self:
        try:
            re.compile(self.include or "")
        except re.error as error:
            raise ValueError(f"topics.include is not a regular expression: {error}") from error
        return self


_SELECTION = {str(declared.alias) for declared in LoadSelection.model_fields.values()}
_SHARED = ("bootstrap.servers", "topic", "spark.kerberos.keytab", "spark.kerberos.principal")
"""Settings that all topics of a run have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadsConfig:
    """Settings of the loads of several topics: those of all topics, and those of single ones, which win."""

    selection: LoadSelection
    common: Mapping[str, Any] = field(repr=False)
    by_topic: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], by_topic: Mapping[str, Mapping[str, Any]]) -> Self:
        """Check all settings. `topic` names one topic, `topics.include` many; otherwise all of `by_topic` are loaded.

        Raises ConfigurationError that names the setting, and its topic if it is one of `by_topic`.
        """
        chosen = {name: value for name, value in settings.items() if name in _SELECTION}
        common = {name: value for name, value in settings.items() if name not in _SELECTION}
        loads = cls(selection=LoadSelection.from_settings(chosen), common=common, by_topic=by_topic)
        if "topic" in common and loads.selection.include is not None:
            raise ConfigurationError("topic", "is given beside topics.include: give one of them")
        if "topic" not in common and loads.selection.include is None and not by_topic:
            reason = 'is missing: give --topic, --topics REGEX, or a table [topics."NAME"] in the settings file'
            raise ConfigurationError("topic", reason)
        for topic, given in by_topic.items():
            for name in _SHARED:
                if name in given:
                    raise ConfigurationError(f'topics."{topic}".{name}', "is the same for all topics of a run")
            loads.config_of(topic)
        if loads.selection.include is not None:
            loads.config_of("any")
        elif "topic" in common:
            loads.config_of(str(common["topic"]))
        return loads

    def config_of(self, topic: str) -> LoadConfig:
        """Return the settings of one topic."""
        given = self.by_topic.get(topic, {})
        try:
            return LoadConfig.from_settings({**self.common, **given, "topic": topic})
        except ConfigurationError as error:
            if error.key in given:
                raise ConfigurationError(f'topics."{topic}".{error.key}', error.reason) from error
            raise

    @property
    def bootstrap(self) -> Addresses:
        """Addresses of brokers of the cluster."""
        return self.config_of(min(self.named or {"any"})).bootstrap

    @property
    def security(self) -> ClientSecurity:
        """Protection of the connections to the cluster."""
        return self.config_of(min(self.named or {"any"})).security

    @property
    def http(self) -> HttpSecurity:
        """Protection of the HTTP server."""
        return self.config_of(min(self.named or {"any"})).http

    @property
    def kerberos(self) -> tuple[Path | None, str | None]:
        """Keytab and principal for HDFS."""
        config = self.config_of(min(self.named or {"any"}))
        return config.kerberos_keytab, config.kerberos_principal

    @property
    def named(self) -> Collection[str]:
        """Topics that are loaded whether they exist or not; none if an expression selects them."""
        if "topic" in self.common:
            return {str(self.common["topic"])}
        return set() if self.selection.include is not None else set(self.by_topic)

    def selects(self, topic: str) -> bool:
        """Return True if the expression selects an existing topic."""
        include = self.selection.include
        return include is not None and not topic.startswith("_") and re.fullmatch(include, topic) is not None
