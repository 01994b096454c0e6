"""Settings as clients are told of them: value, type, and where it comes from (KIP-226, KIP-569). Pure.

A setting of a topic comes from the topic, else from this broker, all brokers, the broker's file, the default: the first
that says something counts, and all are its synonyms in this order.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from annotated_types import Le
from pydantic.fields import FieldInfo

from pipeline.broker.settings.broker import PLAINTEXT, BrokerConfig
from pipeline.broker.settings.documents import BROKER_DOCUMENTS, TOPIC_DOCUMENTS
from pipeline.broker.settings.dynamic import CHANGEABLE, FIELDS, DynamicSettings
from pipeline.broker.settings.topic import BROKER_DEFAULTS, MAX_INT32, TopicSettings, readable_settings
from pipeline.coordination.znodes import ALL_BROKERS
from pipeline.protocol.messages.describe_configs import DescribeConfigsResourceResult, DescribeConfigsSynonym

LISTS = frozenset({"cleanup.policy", "log.cleanup.policy"})
"""Settings that are lists, to which values can be appended."""

SAME_SETTING: Mapping[str, Sequence[str]] = MappingProxyType(
    {"log.retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours")}
)
"""Settings that can be made in several units, under names of which the first one that is given counts."""

_LISTENERS = frozenset({"listeners", "advertised.listeners"})


class ConfigSource(IntEnum):
    """Where a value comes from."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """What values a setting takes."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


def topic_entries(overrides: Mapping[str, str], settings: DynamicSettings) -> Iterator[DescribeConfigsResourceResult]:
    """All settings of a topic that says this itself, with synonyms and documentation."""
    values, _ = readable_settings(overrides, settings.current)
    for attribute, field in TopicSettings.model_fields.items():
        name = field.alias or attribute
        synonyms = [_synonym(name, overrides[name], ConfigSource.TOPIC)] if name in overrides else []
        if name in BROKER_DEFAULTS:
            synonyms += _broker_synonyms(BROKER_DEFAULTS[name], settings)
        elif field.default is not None:
            synonyms.append(_synonym(name, _as_text(name, field.default), ConfigSource.DEFAULT))
        yield _entry(
            name,
            _as_text(name, getattr(values, attribute)),
            _type_of(name, field),
            synonyms,
            read_only=False,
            documentation=TOPIC_DOCUMENTS.get(name),
        )


def broker_entries(settings: DynamicSettings) -> Iterator[DescribeConfigsResourceResult]:
    """All settings of this broker."""
    for attribute, field in BrokerConfig.model_fields.items():
        name = str(field.alias)
        yield _entry(
            name,
            _as_text(name, getattr(settings.current, attribute)),
            _type_of(name, field),
            _broker_synonyms(name, settings),
            read_only=name not in CHANGEABLE,
            documentation=BROKER_DOCUMENTS.get(name),
        )


def all_brokers_entries(settings: DynamicSettings) -> Iterator[DescribeConfigsResourceResult]:
    """What was changed for all brokers."""
    for name, value in sorted(settings.overrides(ALL_BROKERS).settings.items()):
        synonyms = [item for item in _broker_synonyms(name, settings) if item.source != ConfigSource.BROKER]
        yield _entry(
            name,
            value,
            _type_of(name, BrokerConfig.model_fields[FIELDS[name]]),
            synonyms,
            read_only=False,
            documentation=BROKER_DOCUMENTS.get(name),
        )


def _broker_synonyms(name: str, settings: DynamicSettings) -> list[DescribeConfigsSynonym]:
    """Every place where the setting is made, the strongest first; a default of nothing is none."""
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
            text = _as_text(each, getattr(settings.static, FIELDS[each]))
            found.append(_synonym(each, text, ConfigSource.STATIC))
    for each in names:
        field = BrokerConfig.model_fields[FIELDS[each]]
        if not field.is_required() and field.get_default() is not None:
            found.append(_synonym(each, _as_text(each, field.get_default()), ConfigSource.DEFAULT))
    return found


def _synonym(name: str, value: str | None, source: ConfigSource) -> DescribeConfigsSynonym:
    return DescribeConfigsSynonym(name=name, value=value, source=source)


def _entry(
    name: str,
    value: str | None,
    config_type: ConfigType,
    synonyms: list[DescribeConfigsSynonym],
    *,
    read_only: bool,
    documentation: str | None,
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=read_only,
        config_source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        synonyms=synonyms,
        config_type=config_type,
        documentation=documentation,
    )


def _type_of(name: str, field: FieldInfo) -> ConfigType:
    if name in LISTS:
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


def _as_text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if name in _LISTENERS:
        return f"{PLAINTEXT}://{value}"
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{item}" for key, item in value.items())
    if isinstance(value, list | tuple) and all(isinstance(item, str | Path) for item in value):
        return ",".join(map(str, value))
    return str(value)
