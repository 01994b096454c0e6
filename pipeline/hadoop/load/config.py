"""Settings of a load."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from pipeline.errors import ConfigurationError
from pipeline.records.memory import MAX_OPENED_BYTES, MIN_OPENED_BYTES
from pipeline.records.tally import DEFAULT_WINDOW_MS, HOUR_MS
from pipeline.settings import Addresses, SettingsModel

DAY_MS = 24 * HOUR_MS


class LoadConfig(SettingsModel):
    """Settings of a load: its topic and its files."""

    service: ClassVar[str] = "load"

    bootstrap: Annotated[Addresses, Field(alias="bootstrap.servers")]
    """Addresses of brokers of the cluster, `host:port,...`; option `-b`."""
    topic: Annotated[str, Field(alias="topic")]
    """Topic to load; option `--topic`."""
    root: Annotated[str, Field(alias="root", min_length=1)]
    """Directory that holds the topics: `file:///path`, `hdfs://host:port/path`, or an absolute path; option `--root`.
    A logical name in `hdfs://` is resolved by `HADOOP_CONF_DIR`."""
    format: Annotated[Literal["avro", "parquet"], Field(alias="format")] = "parquet"
    """Format of the files; option `--format`."""
    value_format: Annotated[Literal["avro", "binary"], Field(alias="value.format")] = "avro"
    """Format of the records' values: `avro` is a schema id and an Avro datum, `binary` keeps the bytes."""
    codec: Annotated[Literal["null", "snappy", "deflate", "zstandard"], Field(alias="codec")] = "snappy"
    """Codec of the files. In Parquet `deflate` is gzip."""
    registry: Annotated[tuple[str, ...], Field(alias="schema.registry.url")] = ()
    """URLs of schema registries, with commas between them; option `--registry`. Needed for `value.format=avro`."""
    on_bad_record: Annotated[Literal["fail", "quarantine"], Field(alias="on.bad.record")] = "fail"
    """Treatment of records that cannot be decoded: `fail` ends the load, `quarantine` writes them to separate files."""
    fail_on_data_loss: Annotated[bool, Field(alias="fail.on.data.loss")] = True
    """True if a load fails when offsets were deleted before they were loaded. Otherwise it records them as skipped."""
    start_timestamp_ms: Annotated[int | None, Field(alias="start.timestamp.ms", ge=0)] = None
    """Time in ms since 1970 at which a load begins with partitions that no manifest contains, by default with their
    first record."""
    window_ms: Annotated[int, Field(alias="window.ms", ge=1000, le=HOUR_MS)] = DEFAULT_WINDOW_MS
    """Length in ms of the windows of the counts, equal to `audit.window.ms`; must divide an hour, and stay the same for
    a topic."""
    max_records_per_task: Annotated[int, Field(alias="max.records.per.task", ge=1000, le=10**10)] = 10_000_000
    """Maximum records of one Spark task, which takes 8 to 256 MB of the log."""
    max_opened_bytes: Annotated[int, Field(alias="max.opened.bytes", ge=1, le=MAX_OPENED_BYTES)] = MIN_OPENED_BYTES
    """Maximum size in bytes of one decompressed batch. A larger batch ends the load; raise the setting to load it."""
    orphan_age_ms: Annotated[int, Field(alias="orphan.age.ms", ge=60_000, le=30 * DAY_MS)] = DAY_MS
    """Age in ms at which the files of a dead run are deleted. A run is dead once another one has committed instead."""

    @model_validator(mode="before")
    @classmethod
    def _split_urls(cls, settings: Any) -> Any:
        urls = settings.get("schema.registry.url") if isinstance(settings, dict) else None
        if isinstance(urls, str):
            return settings | {"schema.registry.url": [url.strip() for url in urls.split(",") if url.strip()]}
        return settings

    @model_validator(mode="after")
    def _window_divides_an_hour(self) -> Self:
        if HOUR_MS % self.window_ms:
            raise ValueError("window.ms must divide an hour, because the audit's reports are made by the hour")
        return self

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """See SettingsModel."""
        config = super().from_settings(settings)
        if config.value_format == "avro" and not config.registry:
            raise ConfigurationError(
                "schema.registry.url", "is missing: value.format=avro needs it (or set value.format=binary)"
            )
        return config
