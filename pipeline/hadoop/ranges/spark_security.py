"""Options of Spark's reads and writes that protect connections: `kafka.security.protocol`, `kafka.sasl.*`, ...

Names behind `kafka.` are those of `ClientSecurity` and of Kafka's Java clients. Invariant: Spark shows options in
plans, on its pages and in event logs, so an option never holds a secret, but the place of one (`${env:NAME}`, ...).
The driver takes the secret from there, and hands it to its tasks.
"""

from collections.abc import Mapping
from typing import Final

from pipeline.credentials import holds_secret, names_place
from pipeline.errors import ConfigurationError
from pipeline.net.http.login import TRUSTSTORE, HttpLogin
from pipeline.net.security.client_security import ALIASES, OPEN_SECURITY, ClientSecurity
from pipeline.net.security.jaas import parse_jaas
from pipeline.net.security.java_client_settings import JAAS, JAVA_NAMES, from_java

PREFIX: Final = "kafka."
SECURITY_KEYS: Final = (
    "kafka.security.protocol",
    "kafka.sasl.*",
    "kafka.ssl.*",
    "kafka.enable.ssl.certificate.verification",
)
"""Names for an error that lists all options."""
LOGIN_KEYS: Final = (*(str(field.alias) for field in HttpLogin.model_fields.values()), TRUSTSTORE)
REGISTRY_URL: Final = "schema.registry.url"
USER_INFO: Final = "basic.auth.user.info"
_BEGINNINGS: Final = ("kafka.security.", "kafka.sasl.", "kafka.ssl.", "kafka.enable.ssl.")
_SECRETS: Final = frozenset(
    str(field.alias)
    for model in (ClientSecurity, HttpLogin)
    for field in model.model_fields.values()
    if holds_secret(field.annotation)
) | {"ssl.keystore.key"}


def is_security_option(key: str) -> bool:
    """True if an option belongs to the protection of connections."""
    return key.startswith(_BEGINNINGS)


def security_of(options: Mapping[str, str]) -> ClientSecurity:
    """Return the protection that options describe, whose names are in lower case. Raises ConfigurationError."""
    given = {key.removeprefix(PREFIX): value for key, value in options.items() if is_security_option(key)}
    if not given:
        return OPEN_SECURITY
    try:
        for key, value in given.items():
            if key not in JAVA_NAMES and not ClientSecurity.has(key):
                raise ConfigurationError(key, "is not an option: see docs/security.md and Kafka's Java clients")
            _refuse_secret(ALIASES.get(key, key), value)
        return ClientSecurity.from_settings(from_java(given))
    except ConfigurationError as error:
        raise ConfigurationError(f"{PREFIX}{error.key}", error.reason) from error


def registry_login_of(options: Mapping[str, str]) -> HttpLogin:
    """Return the login at schema registries, under Confluent's names. Raises ConfigurationError."""
    if "@" in options.get(REGISTRY_URL, ""):
        raise ConfigurationError(
            REGISTRY_URL, f"holds a password, which Spark shows in plans: write it as {USER_INFO}, as the place of it"
        )
    given = {key: value for key, value in options.items() if HttpLogin.has(key)}
    for key, value in given.items():
        name, _, password = value.partition(":")
        if key != USER_INFO or name.startswith("$") or not names_place(password):  # NAME:${...} is fine
            _refuse_secret(key, value)
    return HttpLogin.from_settings(given)


def _refuse_secret(key: str, value: str) -> None:
    """Raise ConfigurationError if the option holds a secret and not its place."""
    secret = value
    if key == JAAS:
        try:
            login = parse_jaas(value)
        except ValueError:
            return  # `from_java` says what is wrong
        secret = login.password.reveal() if login.password is not None else ""
    elif key not in _SECRETS:
        return
    if not names_place(secret):
        example = 'password="${env:NAME}"' if key == JAAS else "${env:NAME}"
        raise ConfigurationError(
            key,
            f"holds a secret, which Spark shows in plans, on its pages and in event logs: write {example}, "
            "${file:PATH:KEY} or ${directory:DIR:FILE}, and keep the secret there on the driver's machine",
        )
