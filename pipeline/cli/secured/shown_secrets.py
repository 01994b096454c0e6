"""Secrets that a command line would show to all users of the machine. Pure."""

import re
from collections.abc import Mapping, Sequence

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.security import ListenerSecurity
from pipeline.coordination.zookeeper_security import ZooKeeperSecurity
from pipeline.credentials import holds_secret
from pipeline.errors import ConfigurationError
from pipeline.net.http.login import HttpLogin
from pipeline.net.http.security import HttpSecurity
from pipeline.net.security.jaas import parse_jaas
from pipeline.settings import SettingsModel

_MODELS: Sequence[tuple[str, type[SettingsModel]]] = (
    ("", BrokerConfig),
    ("", ListenerSecurity),
    ("", ZooKeeperSecurity),
    ("", HttpSecurity),
    ("confluent.", HttpLogin),
)
"""Models of a broker's settings, and what stands before their names."""
_PLACE = re.compile(r"\$\{(env|file|directory):[^}]+\}")
_OF_LISTENER = re.compile(r"listener\.name\.[^.]+\.")
_JAAS = "sasl.jaas.config"


def refuse_shown_secrets(assignments: Mapping[str, str]) -> None:
    """Raise ConfigurationError if a broker's setting on a command line holds a secret, and not its place."""
    secret_keys = {
        f"{prefix}{field.alias}"
        for prefix, model in _MODELS
        for field in model.model_fields.values()
        if holds_secret(field.annotation)
    }
    for key, value in assignments.items():
        name = _OF_LISTENER.sub("", key, count=1)
        if name.endswith(_JAAS):
            secrets = _secrets_of(value)
        elif name in secret_keys:
            secrets = [value]
        else:
            continue
        if not all(_PLACE.fullmatch(secret) for secret in secrets):
            raise ConfigurationError(
                f"--set {key}",
                "holds a secret, which a command line shows to everybody on this machine: write ${env:NAME}, "
                "${file:PATH:KEY} or ${directory:DIR:FILE} for it",
            )


def _secrets_of(text: str) -> list[str]:
    try:
        login = parse_jaas(text)
    except ValueError:
        return [text]  # it cannot be told what is secret in it
    return [
        secret.reveal() for secret in (login.password, login.client_secret, *login.users.values()) if secret is not None
    ]
