"""Declares the settings of a schema registry, under Confluent's names where they have one. Pure.

Every wait has an upper bound, which a value of zero cannot switch off.
"""

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, StringConstraints, model_validator

from pipeline.model import HostPort
from pipeline.net.http.login import NO_LOGIN, HttpLogin, gathered_login
from pipeline.net.http.security import OPEN_HTTP, HttpSecurity, gathered_http
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity, gathered
from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.settings import Address, Addresses, SettingsModel

Timeout = Annotated[int, Field(ge=100, le=600_000)]
TopicName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,253}$")]
UserNames = tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...]
ALL_USERS = "*"
Url = Annotated[str, StringConstraints(pattern=r"^https?://[^/]+$")]


class SubjectRights(SettingsModel):
    """Users who may read or write the subjects of a name or prefix."""

    service: ClassVar[str] = "subject rule"

    pattern: Annotated[str, StringConstraints(min_length=1, max_length=1000)] = Field(alias="pattern")
    """Name of a subject, or its beginning with `*` behind it; subjects of a context begin with `:.CONTEXT:`. The first
    rule that fits a subject counts."""
    read: UserNames = Field(default=(), alias="read", max_length=1000)
    """Users who may read, beside those of `write`; `*` for all."""
    write: UserNames = Field(default=(), alias="write", max_length=1000)
    """Users who may write, if their role allows that; `*` for all."""

    def fits(self, subject: str) -> bool:
        """True if the pattern fits a subject."""
        beginning = self.pattern.removesuffix("*")
        return subject == self.pattern or (beginning != self.pattern and subject.startswith(beginning))

    def names(self, user: str, *, writes: bool) -> bool:
        """True if the rule lets a user write, or read."""
        named = self.write if writes else (*self.read, *self.write)
        return user in named or ALL_USERS in named


class RegistryConfig(SettingsModel):
    """Settings of one schema registry."""

    service: ClassVar[str] = "schema registry"

    http_listen: Address = Field(default=HostPort("127.0.0.1", 8081), alias="http.listen")
    """Address of the HTTP server for the API, `/metrics` and `/healthz`."""
    http: HttpSecurity = Field(default=OPEN_HTTP, alias="http.security")
    """TLS, users and further ports of the HTTP server: `http.ssl.keystore.location`, `http.users.file` and so on, see
    docs/security/http.md."""
    bootstrap_servers: Addresses = Field(alias="bootstrap.servers")
    """Addresses of brokers of the cluster that stores the schemas, `host:port,...`."""
    security: ClientSecurity = Field(default=OPEN_SECURITY, alias="security")
    """TLS and SASL of the connections: `security.protocol`, `sasl.username` and so on, see docs/security.md."""
    topic: TopicName = Field(default="_schemas", alias="kafkastore.topic")
    """Topic that stores the schemas. A missing topic is created with one partition, `cleanup.policy=compact` and a
    `min.compaction.lag.ms` of a day. A topic that deletes records by their age is refused."""
    replication_factor: int = Field(default=3, ge=1, le=100, alias="kafkastore.topic.replication.factor")
    """Replicas of the topic when it is created. A cluster of fewer brokers gets one replica on each broker."""
    timeout_ms: Timeout = Field(default=5_000, alias="kafkastore.timeout.ms")
    """Time in ms that a write to the topic may take."""
    init_timeout_ms: Timeout = Field(default=60_000, alias="kafkastore.init.timeout.ms")
    """Time in ms that reading the topic at the start may take."""
    host_name: HostName | None = Field(default=None, alias="host.name")
    """Host name under which other registries reach this one, at the port of `http.listen`. Default: the host of
    `http.listen`, or the name of this machine if that is every address (`0.0.0.0`)."""
    leader_eligibility: bool = Field(default=True, alias="leader.eligibility")
    """True if this registry may become the writer. False for a registry that only follows: it forwards all writes. A
    registry over a mirrored topic never becomes the writer."""
    leader_urls: tuple[Url, ...] = Field(default=(), alias="leader.urls", max_length=16)
    """URLs of registries of the datacenter where the topic is written, `http://host:port`, for a registry over the
    mirrored topic. It forwards writes to them and asks them how far their log goes. Default: the URL that the writer
    left in the topic."""
    leader_login: HttpLogin = Field(default=NO_LOGIN, alias="leader.login")
    """Password or token that a registry shows to other registries when it asks how far their log goes, and the
    authorities that it trusts: `leader.basic.auth.user.info` and so on, see docs/security/http.md."""
    leader_connect_timeout_ms: Timeout = Field(default=1_000, alias="leader.connect.timeout.ms")
    """Time in ms in which the writer must accept a connection, or another registry takes over."""
    leader_read_timeout_ms: Timeout = Field(default=7_500, alias="leader.read.timeout.ms")
    """Time in ms in which the writer must answer a forwarded request, or another registry takes over. Keep it above
    `kafkastore.timeout.ms`."""
    subjects: tuple[SubjectRights, ...] = Field(default=(), alias="subjects", max_length=1000)
    """Tables `[[subjects]]` of rules about users and subjects, see docs/security/http.md. Need `http.users.file`."""
    level: CompatibilityLevel = Field(default=CompatibilityLevel.BACKWARD, alias="schema.compatibility.level")
    """Compatibility level of subjects for which the API has set no level."""

    @model_validator(mode="after")
    def _rules_have_users(self) -> Self:
        if self.subjects and self.http.users_file is None:
            raise ValueError("subjects needs http.users.file: without users everybody may do everything")
        return self

    @model_validator(mode="before")
    @classmethod
    def _gather_security(cls, settings: Any) -> Any:
        return gathered_login(gathered_http(gathered(settings)), "leader.")
