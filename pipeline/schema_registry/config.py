"""Settings of a schema registry, under Confluent's names where they have one. Pure.

Every wait has an upper bound, which a value of zero cannot switch off.
"""

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from pipeline.model import HostPort
from pipeline.schema_registry.compatibility import CompatibilityLevel
from pipeline.settings import Address, Addresses, SettingsModel

Timeout = Annotated[int, Field(ge=100, le=600_000)]
TopicName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]


class RegistryConfig(SettingsModel):
    """What a registry needs to know before it starts."""

    service: ClassVar[str] = "schema registry"

    http_listen: Address = Field(default=HostPort("127.0.0.1", 8081), alias="http.listen")
    bootstrap_servers: Addresses = Field(alias="bootstrap.servers")
    topic: TopicName = Field(default="_schemas", alias="kafkastore.topic")
    replication_factor: int = Field(default=3, ge=1, le=100, alias="kafkastore.topic.replication.factor")
    timeout_ms: Timeout = Field(default=5_000, alias="kafkastore.timeout.ms")
    init_timeout_ms: Timeout = Field(default=60_000, alias="kafkastore.init.timeout.ms")
    level: CompatibilityLevel = Field(default=CompatibilityLevel.BACKWARD, alias="schema.compatibility.level")
