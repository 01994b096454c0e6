"""Declares the settings of an audit service, and of a broker's counts. Pure."""

from collections import Counter
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from pipeline.net.http.security import OPEN_HTTP, HttpSecurity, gathered_http
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity, gathered
from pipeline.records.tally import DEFAULT_WINDOW_MS, HOUR_MS
from pipeline.settings import Address, Addresses, SettingsModel


class CountingConfig(SettingsModel):
    """Settings of a broker's counts of appended records."""

    service: ClassVar[str] = "broker"

    window_ms: int = Field(default=DEFAULT_WINDOW_MS, alias="audit.window.ms", ge=60_000, le=HOUR_MS)
    """Length in ms of the windows of the counts; must divide an hour."""
    interval_ms: int = Field(default=10_000, alias="audit.interval.ms", ge=100, le=600_000)
    """Interval in ms between reports of the counts to the topic `_audit`."""

    @model_validator(mode="after")
    def _window_divides_an_hour(self) -> Self:
        if HOUR_MS % self.window_ms:
            raise ValueError("audit.window.ms must divide an hour, because reports are made by the hour")
        return self


class ClusterConfig(SettingsModel):
    """A cluster whose `_audit` topic is read."""

    service: ClassVar[str] = "audited cluster"

    name: str = Field(alias="name", min_length=1)
    """Name of the cluster, the same as `datacenter` of its brokers."""
    bootstrap: Addresses = Field(alias="bootstrap.servers", min_length=1)
    """Addresses of brokers of the cluster, `host:port,...`."""
    security: ClientSecurity = Field(default=OPEN_SECURITY, alias="security")
    """TLS and SASL of the connections: `security.protocol`, `sasl.username` and so on, see docs/security.md."""

    @model_validator(mode="before")
    @classmethod
    def _gather_security(cls, settings: Any) -> Any:
        return gathered(settings)


class AuditConfig(SettingsModel):
    """Settings of one audit service."""

    service: ClassVar[str] = "audit"

    live: tuple[ClusterConfig, ...] = Field(alias="live", min_length=1, max_length=100)
    """Tables `[[live]]` of the live clusters."""
    replica: tuple[ClusterConfig, ...] = Field(default=(), alias="replica", max_length=1)
    """Table `[[replica]]` of the cluster that holds the replicas. Its mirror's partition table tells which partition is
    a copy of which."""
    http_listen: Address = Field(alias="http.listen")
    """Address of the HTTP server for the page, `/v1/report` and the other documents, `/metrics` and `/healthz`."""
    http: HttpSecurity = Field(default=OPEN_HTTP, alias="http.security")
    """TLS, users and further ports of the HTTP server: `http.ssl.keystore.location`, `http.users.file` and so on, see
    docs/security/http.md."""
    grace_ms: int = Field(default=60_000, alias="pending.grace.ms", ge=0, le=86_400_000)
    """Time in ms for which the counts of tiers may differ before records are reported missing or extra. Raise it if
    tiers report their counts late."""
    pending_max_ms: int = Field(default=3_600_000, alias="pending.max.ms", ge=1_000, le=31 * 86_400_000)
    """Time in ms without new counts after which a replica is considered stopped; its outstanding records are then
    reported missing."""
    retry_backoff_ms: int = Field(default=1_000, alias="retry.backoff.ms", ge=10, le=600_000)
    """Time in ms between attempts to read a cluster that failed."""
    load_roots: tuple[str, ...] = Field(default=(), alias="load.roots", max_length=100)
    """Root URLs of loads whose tables the audit may read to narrow a difference. Roots that only events name are not
    opened."""
    spill_folder: str = Field(default="", alias="spill.dir", max_length=4096)
    """Folder of a temporary file for counts of hours that nobody reports any more. Empty: the system's temporary
    folder. Use a disk: a folder in memory (tmpfs) saves none."""
    spill_max_bytes: int = Field(default=1 << 36, alias="spill.max.bytes", ge=0, le=1 << 50)
    """Greatest size in bytes of this file. Counts that do not fit stay in memory."""
    snapshot_folder: str = Field(default="", alias="snapshot.dir", max_length=4096)
    """Folder of this service alone for snapshots of what it has read, so that a start need not read all events again.
    Empty: none, so each start reads everything."""

    @model_validator(mode="before")
    @classmethod
    def _gather_http(cls, settings: Any) -> Any:
        return gathered_http(settings)

    @property
    def clusters(self) -> tuple[ClusterConfig, ...]:
        """All clusters, the live ones first."""
        return (*self.live, *self.replica)

    @model_validator(mode="after")
    def _clusters_have_names_of_their_own(self) -> Self:
        name, count = Counter(cluster.name for cluster in self.clusters).most_common(1)[0]
        if count > 1:
            raise ValueError(f"live and replica give the name {name} to {count} clusters; give each cluster its own")
        return self
