"""Settings of Kafka's Java clients in the words of `client_security`, which are librdkafka's. Pure.

Spark programs have the former. Only PEM is taken, as Java clients have it since KIP-651. Source: Kafka's documentation.
"""

from collections.abc import Mapping
from types import MappingProxyType

from pipeline.errors import ConfigurationError
from pipeline.net.security.jaas import parse_jaas

JAAS = "sasl.jaas.config"
KEYSTORE = "ssl.keystore.location"
IDENTIFICATION = "ssl.endpoint.identification.algorithm"
PLAIN_NAMES = MappingProxyType(
    {
        "ssl.truststore.location": "ssl.ca.location",
        "ssl.truststore.certificates": "ssl.ca.pem",
        "ssl.keystore.key": "ssl.key.pem",
        "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    }
)
"""Settings that have another name, and the same values."""
TYPES = ("ssl.keystore.type", "ssl.truststore.type")
JAVA_NAMES = frozenset({JAAS, KEYSTORE, *PLAIN_NAMES, *TYPES})
"""Names that librdkafka does not have."""


def from_java(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with Java's names replaced. Raises ConfigurationError, which shows no value."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        for name, text in _translated(key, value).items():
            if name in found:
                raise ConfigurationError(key, f"and another setting both give {name}")
            found[name] = text
    return found


def _translated(key: str, value: str) -> Mapping[str, str]:
    if key in TYPES:
        if value.upper() != "PEM":
            raise ConfigurationError(key, "must be PEM: other formats are not read")
        return {}
    if key == JAAS:
        try:
            login = parse_jaas(value)
        except ValueError as error:
            raise ConfigurationError(key, str(error)) from error
        if login.username is None or login.password is None:
            raise ConfigurationError(key, 'needs username="..." and password="..."')
        return {"sasl.username": login.username, "sasl.password": login.password.reveal()}
    if key == KEYSTORE:
        return {"ssl.certificate.location": value, "ssl.key.location": value}
    if key == IDENTIFICATION and not value:
        return {key: "none"}
    return {PLAIN_NAMES.get(key, key): value}
