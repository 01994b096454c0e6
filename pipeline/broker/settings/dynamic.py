"""Holds the settings of a running broker: its file, then changes for all brokers, then changes for this one (KIP-226).

Invariants: `current` is always complete and valid; an invalid change is left out and named, never applied in part. Only
settings in `CHANGEABLE` can be changed while a broker runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from pipeline.broker.settings.broker import FIELDS, BrokerConfig, Mark
from pipeline.broker.settings.topic import BROKER_DEFAULTS
from pipeline.coordination.znodes import ALL_BROKERS
from pipeline.errors import ConfigurationError
from pipeline.net.signals import Signal

CHANGEABLE = frozenset(BROKER_DEFAULTS.values()) | {
    name for name, attribute in FIELDS.items() if Mark.DYNAMIC in BrokerConfig.model_fields[attribute].metadata
}


@dataclass(frozen=True, slots=True)
class Overrides:
    """Changed settings, as stored in a znode of this version (-1: no znode)."""

    settings: Mapping[str, str] = field(default_factory=dict)
    version: int = -1


class DynamicSettings:
    """The present settings of a broker. `static` holds the settings of its file."""

    def __init__(self, static: BrokerConfig) -> None:
        self.static = static
        self.current = static
        self._stored = {ALL_BROKERS: Overrides(), str(static.broker_id): Overrides()}
        self._followers: list[Callable[[BrokerConfig], None]] = []
        self._changed = Signal()

    @property
    def names(self) -> Sequence[str]:
        """Names of the overrides that apply here: `<default>` and this broker's id, the stronger last."""
        return tuple(self._stored)

    def overrides(self, name: str) -> Overrides:
        """Return the overrides stored under this name."""
        return self._stored[name]

    def follow(self, follower: Callable[[BrokerConfig], None]) -> None:
        """Call `follower` with the settings, now and after every change."""
        self._followers.append(follower)
        follower(self.current)

    def take(self, name: str, stored: Overrides) -> Sequence[str]:
        """Apply the overrides stored under `name`. Returns the names of invalid settings, which are left out."""
        usable = {key: value for key, value in stored.settings.items() if key in CHANGEABLE}
        while usable:
            try:
                self._overlay({**self._stored, name: Overrides(usable)})
            except ValidationError as error:
                wrong = {str(item["loc"][0]) for item in error.errors(include_url=False) if item["loc"]}
                # an error that names no setting makes all of them invalid
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
        """Check overrides that are to be stored under `name`. Raises ValueError, which names the wrong setting."""
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
        """Wait until the overrides stored under `name` in this version, or a later one, are applied."""
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
