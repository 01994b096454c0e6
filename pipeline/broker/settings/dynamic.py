"""The settings of a broker while it runs: those of its file, over them what was changed for all brokers, and over both
what was changed for this one (KIP-226).

Invariants: `current` is always a whole and valid configuration; a change that cannot be used is left out by name, never
half taken. Only settings in `CHANGEABLE` can be changed while a broker runs: the defaults of topics, and limits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import BROKER_DEFAULTS
from pipeline.coordination.znodes import ALL_BROKERS
from pipeline.errors import ConfigurationError
from pipeline.net.signals import Signal

LIMITS = frozenset({"max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides"})
THROTTLES = frozenset({"leader.replication.throttled.rate", "follower.replication.throttled.rate"})
CHANGEABLE = frozenset(BROKER_DEFAULTS.values()) | LIMITS | THROTTLES

FIELDS: Mapping[str, str] = MappingProxyType(
    {str(field.alias): name for name, field in BrokerConfig.model_fields.items()}
)
"""From a setting's name to the attribute of `BrokerConfig`."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What was changed, as stored in a znode of this version (-1: there is none)."""

    settings: Mapping[str, str] = field(default_factory=dict)
    version: int = -1


class DynamicSettings:
    """The settings of one broker, now. `static` are those of its file."""

    def __init__(self, static: BrokerConfig) -> None:
        self.static = static
        self.current = static
        self._stored = {ALL_BROKERS: Overrides(), str(static.broker_id): Overrides()}
        self._followers: list[Callable[[BrokerConfig], None]] = []
        self._changed = Signal()

    @property
    def names(self) -> Sequence[str]:
        """Whose overrides count here: `<default>` and this broker's id, the stronger last."""
        return tuple(self._stored)

    def overrides(self, name: str) -> Overrides:
        """What was changed under this name."""
        return self._stored[name]

    def follow(self, follower: Callable[[BrokerConfig], None]) -> None:
        """Tell the settings now and after every change."""
        self._followers.append(follower)
        follower(self.current)

    def take(self, name: str, stored: Overrides) -> Sequence[str]:
        """Have what is stored under `name` now count. Returns the names of what cannot be used and is left out."""
        usable = {key: value for key, value in stored.settings.items() if key in CHANGEABLE}
        while usable:
            try:
                self._overlay({**self._stored, name: Overrides(usable)})
            except ValidationError as error:
                wrong = {str(item["loc"][0]) for item in error.errors(include_url=False) if item["loc"]}
                usable = {key: value for key, value in usable.items() if key not in wrong} if wrong else {}
            else:
                break
        self._stored[name] = Overrides(usable, stored.version)
        self.current = self._overlay(self._stored)
        for follower in self._followers:
            follower(self.current)
        self._changed.notify()
        return sorted(stored.settings.keys() - usable.keys())

    def check(self, name: str, settings: Mapping[str, str]) -> None:
        """Whether this could be stored under `name`. Raises ValueError with a sentence that names what is wrong."""
        unknown = sorted(settings.keys() - FIELDS.keys())
        if unknown:
            raise ValueError(f"Unknown broker config name: {', '.join(unknown)}")
        fixed = sorted(settings.keys() - CHANGEABLE)
        if fixed:
            raise ValueError(f"Cannot update these configs dynamically: {', '.join(fixed)}")
        try:
            BrokerConfig.from_settings(self._layers({**self._stored, name: Overrides(settings)}))
        except ConfigurationError as error:
            raise ValueError(f"Invalid value for configuration {error}") from error

    async def wait_for(self, name: str, version: int) -> None:
        """Wait until what is stored under `name` in this version, or a later one, counts here."""
        while self._stored[name].version < version:
            await self._changed.wait()

    def _overlay(self, stored: Mapping[str, Overrides]) -> BrokerConfig:
        return BrokerConfig.model_validate(self._layers(stored))

    def _layers(self, stored: Mapping[str, Overrides]) -> dict[str, Any]:
        layers = {
            str(BrokerConfig.model_fields[name].alias): getattr(self.static, name)
            for name in self.static.model_fields_set
        }
        for overrides in stored.values():
            layers.update(overrides.settings)
        return layers
