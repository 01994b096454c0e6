"""Configs and modes of subjects, contexts and of all, and which of them holds. Pure.

A setting that a subject lacks is looked for in its context, then in the global context `:.__GLOBAL:`. The settings of
the default context bear no name (None). They hold for its own subjects only, as in Confluent's registry.
"""

from dataclasses import replace
from typing import TypeVar

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.state.contexts import DEFAULT_CONTEXT, GLOBAL_CONTEXT, context_of, join_subject
from pipeline.schema_registry.state.events import ConfigSet, ModeSet
from pipeline.schema_registry.state.subject_settings import NO_CONFIG, RegistryMode, SubjectConfig

SettingT = TypeVar("SettingT")


class ScopedSettings:
    """Fold of the records of settings. `scope` is a subject, a context, or None for the default context."""

    def __init__(self, default_level: CompatibilityLevel) -> None:
        self._default_level = default_level
        self._configs: dict[str | None, SubjectConfig] = {}
        self._modes: dict[str | None, RegistryMode] = {}
        self._other_keys: dict[tuple[type[ConfigSet | ModeSet], str | None], dict[bytes, None]] = {}

    def apply(self, event: ConfigSet | ModeSet) -> None:
        """Apply a record."""
        if isinstance(event, ConfigSet):
            _put(self._configs, event.subject, event.config)
        else:
            _put(self._modes, event.subject, event.mode)
        if event.other_key is not None:
            self._other_keys.setdefault((type(event), event.subject), {})[event.other_key] = None

    def own_config(self, scope: str | None) -> SubjectConfig | None:
        """Return the config that was set for a scope, without defaults."""
        return self._configs.get(scope)

    def config(self, scope: str | None = None) -> SubjectConfig:
        """Return the config that holds for a scope. It has a level."""
        own = self._configs.get(scope, NO_CONFIG)
        found = [self._configs.get(one, NO_CONFIG) for one in _scopes(scope)]
        normalize = next((config.normalize for config in found if config.normalize is not None), None)
        return replace(own, level=self.level(scope), normalize=normalize)

    def level(self, scope: str | None = None) -> CompatibilityLevel:
        """Return the compatibility level that holds for a scope."""
        levels = (self._configs.get(one, NO_CONFIG).level for one in _scopes(scope))
        return next((level for level in levels if level is not None), self._default_level)

    def own_mode(self, scope: str | None) -> RegistryMode | None:
        """Return the mode that was set for a scope, without defaults."""
        return self._modes.get(scope)

    def mode(self, scope: str | None = None) -> RegistryMode:
        """Return the mode that holds for a scope."""
        if self._modes.get(None) is RegistryMode.READONLY_OVERRIDE:
            return RegistryMode.READONLY_OVERRIDE
        found = (self._modes.get(one) for one in _scopes(scope))
        return next((mode for mode in found if mode is not None), RegistryMode.READWRITE)

    def scopes_with_mode(self) -> list[str]:
        """Return subjects and contexts that have a mode of their own, sorted."""
        return sorted(scope for scope in self._modes if scope is not None)

    def other_keys(self, kind: type[ConfigSet | ModeSet], scope: str | None) -> tuple[bytes, ...]:
        """Return the keys of records of a setting where other registries spelt them otherwise."""
        return tuple(self._other_keys.get((kind, scope), ()))


def _scopes(scope: str | None) -> tuple[str | None, ...]:
    """Return where a setting is looked for, first to last."""
    everywhere = join_subject(GLOBAL_CONTEXT, "")
    if scope is None:
        return None, everywhere
    context = context_of(scope)
    return scope, None if context == DEFAULT_CONTEXT else join_subject(context, ""), everywhere


def _put(settings: dict[str | None, SettingT], scope: str | None, setting: SettingT | None) -> None:
    settings.pop(scope, None)
    if setting is not None:
        settings[scope] = setting
