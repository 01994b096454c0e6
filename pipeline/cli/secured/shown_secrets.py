"""Secrets that stand in settings which others can see, such as those of a command line. Pure."""

import re
from collections.abc import Mapping, Sequence

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.security import ListenerSecurity
from pipeline.coordination.zookeeper_security import ZooKeeperSecurity
from pipeline.credentials import holds_secret
from pipeline.errors import ConfigurationError
from pipeline.hadoop.iceberg.catalog_secrets import shows_secret
from pipeline.net.http.login import HttpLogin
from pipeline.net.http.security import HttpSecurity
from pipeline.net.security.client_security import ClientSecurity
from pipeline.net.security.jaas import parse_jaas
from pipeline.settings import SettingsModel

_MODELS: Sequence[type[SettingsModel]] = (
    BrokerConfig,
    ListenerSecurity,
    ClientSecurity,
    ZooKeeperSecurity,
    HttpSecurity,
    HttpLogin,
)
_SECRET_KEYS = frozenset(
    str(field.alias) for model in _MODELS for field in model.model_fields.values() if holds_secret(field.annotation)
)
"""Settings that hold secrets; some services have them behind a prefix, such as `listener.name.client.`."""
_PLACE = re.compile(r"\$\{(env|file|directory):[^}]+\}")
USER_INFO = "basic.auth.user.info"
CATALOG_PREFIX = "iceberg.catalog."
_JAAS = "sasl.jaas.config"


def refuse_shown_secrets(assignments: Mapping[str, str]) -> None:
    """Raise ConfigurationError if a broker's setting on a command line holds a secret, and not its place."""
    for key, value in assignments.items():
        if is_shown_secret(key, value):
            raise ConfigurationError(
                f"--set {key}",
                "holds a secret, which a command line shows to everybody on this machine: write ${env:NAME}, "
                "${file:PATH:KEY} or ${directory:DIR:FILE} for it",
            )


def is_shown_secret(key: str, value: str) -> bool:
    """True if a setting of any service holds a secret itself, and not the place of one."""
    if key.endswith(_JAAS):
        secrets = _secrets_of(value)
    elif key.startswith(CATALOG_PREFIX):
        return shows_secret(key.removeprefix(CATALOG_PREFIX), value)
    elif key in _SECRET_KEYS or key.endswith(tuple(f".{name}" for name in _SECRET_KEYS)):
        name, _, password = value.partition(":")
        is_login = key.endswith(USER_INFO) and not name.startswith("$")  # NAME:${...}
        secrets = [password if is_login else value]
    else:
        return False
    return not all(_PLACE.fullmatch(secret) for secret in secrets)


def _secrets_of(text: str) -> list[str]:
    try:
        login = parse_jaas(text)
    except ValueError:
        return [text]  # it cannot be told what is secret in it
    return [
        secret.reveal() for secret in (login.password, login.client_secret, *login.users.values()) if secret is not None
    ]
