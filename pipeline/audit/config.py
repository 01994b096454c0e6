"""The settings of an audit service. Pure."""

from typing import ClassVar

from pydantic import Field

from pipeline.settings import Address, Addresses, SettingsModel


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
    retry_backoff_ms: int = Field(default=1_000, alias="retry.backoff.ms", ge=10, le=600_000)

    @property
    def clusters(self) -> tuple[ClusterConfig, ...]:
        """All of them."""
        return (*self.live, *self.replica)
