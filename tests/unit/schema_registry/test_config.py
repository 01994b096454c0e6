from typing import Any

import pytest

from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.config import RegistryConfig

NEEDED = {"bootstrap.servers": "a:1,b:2"}


def test_registry_settings_have_defaults() -> None:
    config = RegistryConfig.from_settings(NEEDED)
    assert config.bootstrap_servers == (HostPort("a", 1), HostPort("b", 2))
    assert (config.http_listen, config.topic) == (HostPort("127.0.0.1", 8081), "_schemas")
    assert config.level is CompatibilityLevel.BACKWARD


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, "bootstrap.servers"),
        ({**NEEDED, "http.listen": "8081"}, "http.listen"),
        ({**NEEDED, "kafkastore.topic": "a b"}, "kafkastore.topic"),
        ({**NEEDED, "kafkastore.timeout.ms": 0}, "kafkastore.timeout.ms"),
        ({**NEEDED, "schema.compatibility.level": "SOME"}, "schema.compatibility.level"),
        ({**NEEDED, "kafkastore.topics": "x"}, "kafkastore.topics"),
    ],
)
def test_an_error_names_the_key(settings: Any, key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RegistryConfig.from_settings(settings)
    assert caught.value.key == key
