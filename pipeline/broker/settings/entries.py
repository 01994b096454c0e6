"""Describes settings to clients: value, type, source and documentation (KIP-226, KIP-569). Pure.

A topic setting comes from the topic, this broker, all brokers, the broker's file, or the default. The first of these
that is set applies; all of them are the setting's synonyms, in this order.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from annotated_types import Le
from pydantic.fields import FieldInfo

from pipeline.broker.settings.broker import FIELDS, BrokerConfig, Mark
from pipeline.broker.settings.dynamic import CHANGEABLE, DynamicSettings
from pipeline.broker.settings.listeners import ListenersConfig, NamedAddress
from pipeline.broker.settings.topic import BROKER_DEFAULTS, TopicSettings, readable_settings
from pipeline.coordination.znodes import ALL_BROKERS
from pipeline.coordination.zookeeper_security import ZooKeeperSecurity
from pipeline.credentials import holds_secret
from pipeline.net.security.principal_rules import PrincipalRule
from pipeline.protocol.messages.describe_configs import (
    ConfigSource,
    ConfigType,
    DescribeConfigsResourceResult,
    DescribeConfigsSynonym,
)
from pipeline.settings import MAX_INT32, SettingsModel

LISTS = frozenset(
    str(field.alias)
    for field in (*BrokerConfig.model_fields.values(), *TopicSettings.model_fields.values())
    if Mark.LIST in field.metadata
)
"""Settings that are lists, to which values can be appended."""

_SHOWN = NamedAddress | PrincipalRule
"""Values that spell themselves as in a settings file."""

TOPIC_TEXTS: Mapping[str, str] = MappingProxyType(TopicSettings.descriptions())
BROKER_TEXTS: Mapping[str, str] = MappingProxyType(
    BrokerConfig.descriptions()
    | ListenersConfig.descriptions()
    | ZooKeeperSecurity.descriptions()
    | {
        setting: f"{TOPIC_TEXTS[name]} Default for topics that do not set `{name}`."
        for name, setting in BROKER_DEFAULTS.items()
    }
)
"""The description of each setting, as docs/broker.md and DescribeConfigs show it."""

SAME_SETTING: Mapping[str, Sequence[str]] = MappingProxyType(
    {"log.retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours")}
)
"""Settings that have several units, each with a name of its own. The first name that is set applies."""


def topic_entries(overrides: Mapping[str, str], settings: DynamicSettings) -> Iterator[DescribeConfigsResourceResult]:
    """Yield all settings of a topic with these overrides, with synonyms and documentation."""
    values, _ = readable_settings(overrides, settings.current)
    for attribute, field in TopicSettings.model_fields.items():
        name = str(field.alias)
        synonyms = [_synonym(name, overrides[name], ConfigSource.TOPIC)] if name in overrides else []
        if name in BROKER_DEFAULTS:
            synonyms += _broker_synonyms(BROKER_DEFAULTS[name], settings)
        elif field.default is not None:
            synonyms.append(_synonym(name, as_text(name, field.default), ConfigSource.DEFAULT))
        yield _entry(field, as_text(name, getattr(values, attribute)), synonyms, TOPIC_TEXTS)


def broker_entries(settings: DynamicSettings) -> Iterator[DescribeConfigsResourceResult]:
    """Yield all settings of this broker."""
    for name, attribute in FIELDS.items():
        field = BrokerConfig.model_fields[attribute]
        value = as_text(name, getattr(settings.current, attribute))
        yield _entry(field, value, _broker_synonyms(name, settings), BROKER_TEXTS, read_only=name not in CHANGEABLE)
    yield from _table_entries(settings.static.listening)
    yield from _table_entries(settings.static.zookeeper_security)


def _table_entries(table: SettingsModel) -> Iterator[DescribeConfigsResourceResult]:
    """Yield the settings of a table of its own, which no broker can change while it runs."""
    for attribute, field in type(table).model_fields.items():
        name, given = str(field.alias), getattr(table, attribute)
        value, default = as_text(name, given), as_text(name, field.get_default())
        synonyms = [_synonym(name, value, ConfigSource.STATIC)] if attribute in table.model_fields_set else []
        if default is not None:
            synonyms.append(_synonym(name, default, ConfigSource.DEFAULT))
        entry = _entry(field, value, synonyms, BROKER_TEXTS, read_only=True)
        is_secret = holds_secret(field.annotation) or name == "listener.name"
        yield replace(entry, is_sensitive=True, value=None, synonyms=()) if is_secret else entry


def all_brokers_entries(settings: DynamicSettings) -> Iterator[DescribeConfigsResourceResult]:
    """Yield the settings that were changed for all brokers."""
    for name, value in sorted(settings.overrides(ALL_BROKERS).settings.items()):
        synonyms = [item for item in _broker_synonyms(name, settings) if item.source != ConfigSource.BROKER]
        yield _entry(BrokerConfig.model_fields[FIELDS[name]], value, synonyms, BROKER_TEXTS)


def _broker_synonyms(name: str, settings: DynamicSettings) -> list[DescribeConfigsSynonym]:
    """Return every source that sets a broker setting, the strongest first. A default of None is left out."""
    names = SAME_SETTING.get(name, (name,))
    found = []
    for level, source in (
        (str(settings.static.broker_id), ConfigSource.BROKER),
        (ALL_BROKERS, ConfigSource.ALL_BROKERS),
    ):
        changed = settings.overrides(level).settings
        found += [_synonym(each, changed[each], source) for each in names if each in changed]
    for each in names:
        if FIELDS[each] in settings.static.model_fields_set:
            text = as_text(each, getattr(settings.static, FIELDS[each]))
            found.append(_synonym(each, text, ConfigSource.STATIC))
    for each in names:
        field = BrokerConfig.model_fields[FIELDS[each]]
        if not field.is_required() and field.get_default() is not None:
            found.append(_synonym(each, as_text(each, field.get_default()), ConfigSource.DEFAULT))
    return found


def _synonym(name: str, value: str | None, source: ConfigSource) -> DescribeConfigsSynonym:
    return DescribeConfigsSynonym(name=name, value=value, source=source)


def _entry(
    field: FieldInfo,
    value: str | None,
    synonyms: list[DescribeConfigsSynonym],
    texts: Mapping[str, str],
    *,
    read_only: bool = False,
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=str(field.alias),
        value=value,
        read_only=read_only,
        config_source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        synonyms=synonyms,
        config_type=_type_of(field),
        documentation=texts[str(field.alias)],
    )


def _type_of(field: FieldInfo) -> ConfigType:
    if Mark.LIST in field.metadata:
        return ConfigType.LIST
    kinds: Collection[Any] = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    kind = next(iter(kinds), field.annotation) if len(kinds) <= 1 else field.annotation
    kind = getattr(kind, "__supertype__", kind)
    if kind is bool:
        return ConfigType.BOOLEAN
    if kind is float:
        return ConfigType.DOUBLE
    if kind is int:
        is_short = any(isinstance(bound, Le) and bound.le <= MAX_INT32 for bound in field.metadata)
        return ConfigType.INT if is_short else ConfigType.LONG
    return ConfigType.STRING


def as_text(name: str, value: Any) -> str | None:
    """Return a value as a settings file and DescribeConfigs spell it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{as_text(name, item)}" for key, item in value.items())
    if isinstance(value, list | tuple) and all(isinstance(item, str | Path | _SHOWN) for item in value):
        return ",".join(map(str, value))
    return str(value)
