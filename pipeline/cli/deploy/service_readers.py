"""Rendered settings, read as each service reads its own, on a machine that has none of the secrets."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipeline.audit.config import AuditConfig
from pipeline.cli.broker import read_broker_settings
from pipeline.cli.secured.shown_secrets import is_shown_secret
from pipeline.credentials import without_places
from pipeline.deployment.company import Company, ServiceRole
from pipeline.deployment.services import services_of
from pipeline.errors import ConfigurationError
from pipeline.hadoop.load.config import LoadsConfig
from pipeline.mirror.config import MirrorConfig
from pipeline.schema_registry.config import RegistryConfig
from pipeline.settings import flatten, settings_text

READERS: Mapping[ServiceRole, Callable[[dict[str, Any]], object]] = {
    ServiceRole.BROKER: read_broker_settings,
    ServiceRole.REGISTRY: RegistryConfig.from_settings,
    ServiceRole.MIRROR: MirrorConfig.from_settings,
    ServiceRole.AUDIT: AuditConfig.from_settings,
    ServiceRole.LOAD: lambda settings: LoadsConfig.from_settings(settings, {}),
}
"""Readers of settings by role. ZooKeeper has none: its server takes any property."""
_PROPERTY = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_LOGIN = re.compile(r"://[^/@\s]*:[^/@\s]+@")


def reader_faults(company: Company) -> tuple[str, ...]:
    """Return what services would say against their settings, each fault once; and secrets that stand in them."""
    faults: dict[str, None] = {}
    for service in services_of(company):
        role = service.role
        given = _zookeeper_faults(service.given) if role is ServiceRole.ZOOKEEPER else _secret_faults(service.given)
        faults |= dict.fromkeys(f"settings.{role.value}: {fault}" for fault in given)
        if role in READERS:
            try:
                READERS[role](flatten(tomllib.loads(without_places(settings_text(service.settings)))))
            except ConfigurationError as error:
                faults[f"settings.{role.value}: {error}"] = None
    for load in company.loads:
        if _LOGIN.search(load.root):
            faults[f"loads.{load.name}.root holds a password; put it into Hadoop's configuration on the host"] = None
    return tuple(faults)


def _secret_faults(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Find secrets in settings, also in those of tables."""
    for key, value in settings.items():
        if isinstance(value, list):
            for table in value:
                if isinstance(table, Mapping):
                    yield from _secret_faults(table, f"{prefix}{key}.")
        elif is_shown_secret(key, str(value)):
            yield f"{prefix}{key} holds a secret; write ${{file:PATH:KEY}} for it"
        elif _LOGIN.search(str(value)):
            yield f"{prefix}{key} holds a password in a URL; name the file of the password in a setting of its own"


def _zookeeper_faults(settings: Mapping[str, Any]) -> Iterator[str]:
    """Find what a file of properties would not say as it is meant, and secrets."""
    for key, value in settings.items():
        if _PROPERTY.fullmatch(key) is None:
            yield f"{key!r} is no name of a setting: such names have letters, digits, dots, - and _"
        elif key.lower().endswith("password"):
            yield f"{key} holds a secret; write it into a file, and the file's path into {key}Path"
        elif not isinstance(value, str | int) or not str(value).isprintable():
            yield f"{key} must be one line of text, a number, true or false"
