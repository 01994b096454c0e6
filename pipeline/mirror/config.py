"""The settings of a mirror. Pure."""

from typing import ClassVar

from pydantic import Field

from pipeline.settings import Address, Addresses, SettingsModel


class SourceConfig(SettingsModel):
    """A live cluster to copy from."""

    service: ClassVar[str] = "mirror's source"

    name: str = Field(alias="name", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    bootstrap: Addresses = Field(alias="bootstrap.servers", min_length=1)


class MirrorConfig(SettingsModel):
    """What one mirror service is told."""

    service: ClassVar[str] = "mirror"

    destination: Addresses = Field(alias="destination.bootstrap.servers", min_length=1)
    sources: tuple[SourceConfig, ...] = Field(alias="sources", min_length=1, max_length=100)
    topics: tuple[str, ...] = Field(alias="topics", min_length=1)
    """Regular expressions; a topic is mirrored when one matches its whole name."""
    exclude: tuple[str, ...] = Field(default=(), alias="topics.exclude")
    http_listen: Address = Field(alias="http.listen")
    refresh_interval_ms: int = Field(default=5_000, alias="refresh.interval.ms", ge=100, le=3_600_000)
    fetch_max_bytes: int = Field(default=16 * 1024 * 1024, alias="fetch.max.bytes", ge=1024, le=64 * 1024 * 1024)
    fetch_max_wait_ms: int = Field(default=500, alias="fetch.max.wait.ms", ge=0, le=60_000)
    produce_timeout_ms: int = Field(default=10_000, alias="produce.timeout.ms", ge=100, le=600_000)
    retry_backoff_ms: int = Field(default=1_000, alias="retry.backoff.ms", ge=10, le=600_000)
