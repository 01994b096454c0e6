"""Rendered settings, read as each service reads its own, on a machine that has none of the secrets."""

import tomllib
from collections.abc import Callable, Mapping
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


def reader_faults(company: Company) -> tuple[str, ...]:
    """Return what services would say against their settings, each fault once; and secrets that stand in them."""
    faults: dict[str, None] = {}
    for service in services_of(company):
        role = service.role
        for key, value in service.given.items():
            if isinstance(value, str) and is_shown_secret(key, value):
                faults[f"settings.{role.value}: {key} holds a secret; write ${{file:PATH:KEY}} for it"] = None
            is_property = isinstance(value, str | int) and "\n" not in str(value)
            if role is ServiceRole.ZOOKEEPER and not is_property:
                faults[f"settings.{role.value}: {key} must be one line of text, a number, true or false"] = None
        if role in READERS:
            try:
                READERS[role](flatten(tomllib.loads(without_places(settings_text(service.settings)))))
            except ConfigurationError as error:
                faults[f"settings.{role.value}: {error}"] = None
    return tuple(faults)
