"""Settings of TLS and SASL among those of services."""

from typing import Any

import pytest

from pipeline.audit.config import AuditConfig
from pipeline.errors import ConfigurationError
from pipeline.hadoop.load.config import LoadConfig, LoadsConfig
from pipeline.mirror.config import MirrorConfig
from pipeline.model import SecurityProtocol
from pipeline.net.security.client_security import OPEN_SECURITY
from pipeline.schema_registry.config import RegistryConfig

SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "alice", "sasl.password": "s3cret"}
SOURCE: dict[str, Any] = {"name": "east", "bootstrap.servers": "h:1"}
MIRROR: dict[str, Any] = {
    "destination.bootstrap.servers": "h:2",
    "sources": [SOURCE],
    "topics": ["clicks"],
    "http.listen": "127.0.0.1:0",
}
LOAD = {"bootstrap.servers": "h:1", "topic": "clicks", "root": "/data", "value.format": "binary"}


def test_each_cluster_of_a_service_has_its_own_protection() -> None:
    open_mirror = MirrorConfig.from_settings(MIRROR)
    assert open_mirror.destination_security == open_mirror.sources[0].security == OPEN_SECURITY
    secured = {f"destination.{key}": value for key, value in SASL.items()}
    mirror = MirrorConfig.from_settings({**MIRROR, **secured, "sources": [{**SOURCE, "security.protocol": "SSL"}]})
    assert mirror.destination_security.protocol is SecurityProtocol.SASL_PLAINTEXT
    assert mirror.sources[0].security.protocol is SecurityProtocol.SSL
    audit = AuditConfig.from_settings({"live": [{**SOURCE, **SASL}], "http.listen": "127.0.0.1:0"})
    assert audit.live[0].security.username == "alice"
    registry = RegistryConfig.from_settings({"bootstrap.servers": "h:1", **SASL})
    assert registry.security.username == "alice"
    load = LoadConfig.from_settings({**LOAD, **SASL})
    assert load.security.username == "alice"
    loads = LoadsConfig.from_settings({**LOAD, **SASL}, {})
    assert loads.security == load.security
    for shown in (mirror, audit, registry, load, loads):
        assert "s3cret" not in repr(shown)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"destination.security.protocol": "TLS"}, "destination.security.protocol"),
        ({"destination.security.protocol": "SASL_SSL"}, "destination.sasl.username"),
        ({"destination.sasl.passwort": "s3cret"}, "destination.sasl.passwort"),
        ({"sources": [{**SOURCE, "security.protocol": "TLS"}]}, "security.protocol"),
    ],
)
def test_errors_name_the_key(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        MirrorConfig.from_settings({**MIRROR, **settings})
    assert refusal.value.key == key
    assert "s3cret" not in str(refusal.value)
