"""Declares the settings of `pipeline audit count`. Pure."""

import re
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from pipeline.net.http.security import OPEN_HTTP, HttpSecurity, gathered_http
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity, gathered
from pipeline.records.tally import DEFAULT_WINDOW_MS, HOUR_MS
from pipeline.settings import Address, Addresses, SettingsModel

MIN_THROTTLE = 1024
MAX_THROTTLE = 1 << 40


class ReaderConfig(SettingsModel):
    """Settings of a reader that counts a cluster whose brokers do not count."""

    service: ClassVar[str] = "reader of headers"

    datacenter: str = Field(alias="datacenter", min_length=1)
    """Name of the cluster, the same as its `name` in the settings of the audit."""
    bootstrap: Addresses = Field(alias="bootstrap.servers", min_length=1)
    """Addresses of brokers of the cluster, `host:port,...`."""
    reports: Addresses = Field(default=(), alias="audit.bootstrap.servers")
    """Addresses of brokers of the cluster whose topic `_audit` takes the reports. Without a value: the cluster that is
    counted. It must be one that the audit reads."""
    security: ClientSecurity = Field(default=OPEN_SECURITY, alias="security")
    """TLS and SASL of the connections: `security.protocol`, `sasl.username` and so on, see docs/security.md."""
    reports_security: ClientSecurity = Field(default=OPEN_SECURITY, alias="audit.security")
    """TLS and SASL of the connections to `audit.bootstrap.servers`: `audit.security.protocol` and so on."""
    topics: tuple[str, ...] = Field(default=(".*",), alias="topics", min_length=1, max_length=1000)
    """Regular expressions. A topic is counted if one of them matches its whole name. Internal topics (`_...`) never
    are."""
    exclude: tuple[str, ...] = Field(default=(), alias="topics.exclude", max_length=1000)
    """Regular expressions. A topic is not counted if one of them matches its whole name."""
    window_ms: int = Field(default=DEFAULT_WINDOW_MS, alias="audit.window.ms", ge=60_000, le=HOUR_MS)
    """Length in ms of the windows of the counts; must divide an hour."""
    interval_ms: int = Field(default=10_000, alias="audit.interval.ms", ge=100, le=30_000)
    """Interval in ms between reports of the counts to the topic `_audit`."""
    refresh_interval_ms: int = Field(default=5_000, alias="refresh.interval.ms", ge=100, le=3_600_000)
    """Interval in ms between searches for new topics and partitions."""
    fetch_max_bytes: int = Field(default=8 * 1024 * 1024, alias="fetch.max.bytes", ge=1024, le=64 * 1024 * 1024)
    """Bytes of a backlog that are on their way from one broker, in all its Fetch responses. They are also the bound of
    the memory that batches take, for each broker."""
    throttle_bytes_per_s: int | None = Field(
        default=None, alias="throttle.bytes.per.second", ge=MIN_THROTTLE, le=MAX_THROTTLE
    )
    """Largest number of bytes per second that are fetched, on average. Without a value: as many as there are. It must
    be more than producers write, or the counts fall behind for good."""
    timeout_ms: int = Field(default=10_000, alias="request.timeout.ms", ge=100, le=600_000)
    """Time in ms to wait for a broker's answer."""
    retry_backoff_ms: int = Field(default=1_000, alias="retry.backoff.ms", ge=10, le=600_000)
    """Time in ms between attempts to read what failed."""
    http_listen: Address = Field(alias="http.listen")
    """Address of the HTTP server for `/v1/status`, `/metrics` and `/healthz`."""
    http: HttpSecurity = Field(default=OPEN_HTTP, alias="http.security")
    """TLS, users and further ports of the HTTP server: `http.ssl.keystore.location`, `http.users.file` and so on, see
    docs/security/http.md."""

    @model_validator(mode="before")
    @classmethod
    def _gather_http(cls, settings: Any) -> Any:
        return gathered(gathered(gathered_http(settings)), "audit.")

    @field_validator("topics", "exclude")
    @classmethod
    def _patterns_compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"has {pattern!r}, which is no regular expression: {error}") from None
        return patterns

    @model_validator(mode="after")
    def _window_of_a_reader_divides_an_hour(self) -> Self:
        if HOUR_MS % self.window_ms:
            raise ValueError("audit.window.ms must divide an hour, because reports are made by the hour")
        return self

    def selects(self, topic: str) -> bool:
        """Return True if the topic is counted, unless it is internal."""
        return any(re.fullmatch(pattern, topic) for pattern in self.topics) and not any(
            re.fullmatch(pattern, topic) for pattern in self.exclude
        )
