"""The settings of an audit service. Pure."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from pipeline.records.tally import DEFAULT_WINDOW_MS, HOUR_MS
from pipeline.settings import Address, Addresses, SettingsModel


class CountingConfig(SettingsModel):
    """How a broker counts what it appends."""

    service: ClassVar[str] = "broker"

    window_ms: int = Field(default=DEFAULT_WINDOW_MS, alias="audit.window.ms", ge=60_000, le=HOUR_MS)
    interval_ms: int = Field(default=10_000, alias="audit.interval.ms", ge=100, le=600_000)
    """How often it tells what it counted."""

    @model_validator(mode="after")
    def _window_divides_an_hour(self) -> Self:
        if HOUR_MS % self.window_ms:
            raise ValueError("audit.window.ms must divide an hour, which is what reports are made of")
        return self


class ClusterConfig(SettingsModel):
    """A cluster whose audit topic is read."""

    service: ClassVar[str] = "audited cluster"

    name: str = Field(alias="name", min_length=1)
    bootstrap: Addresses = Field(alias="bootstrap.servers", min_length=1)


class AuditConfig(SettingsModel):
    """What one audit service is told: the live clusters, and the one that holds the replicas, if any."""

    service: ClassVar[str] = "audit"

    live: tuple[ClusterConfig, ...] = Field(alias="live", min_length=1, max_length=100)
    replica: tuple[ClusterConfig, ...] = Field(default=(), alias="replica", max_length=1)
    http_listen: Address = Field(alias="http.listen")
    grace_ms: int = Field(default=60_000, alias="pending.grace.ms", ge=0, le=86_400_000)
    """For how long producers and their broker may differ before that is called missing or extra."""
    pending_max_ms: int = Field(default=3_600_000, alias="pending.max.ms", ge=1_000, le=31 * 86_400_000)
    """For how long a replica may stand still before what has not come is called missing."""
    retry_backoff_ms: int = Field(default=1_000, alias="retry.backoff.ms", ge=10, le=600_000)

    @property
    def clusters(self) -> tuple[ClusterConfig, ...]:
        """All of them."""
        return (*self.live, *self.replica)
