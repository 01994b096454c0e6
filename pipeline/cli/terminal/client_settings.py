"""Settings of clients on the command line: `-X key=value`, with Kafka's names."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from enum import Enum, IntEnum
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from pipeline.cli.terminal.settings import parse_assignments
from pipeline.errors import ConfigurationError

ClientSettings = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        metavar="KEY=VALUE",
        help="Client setting by Kafka's name, such as linger.ms=50; repeatable. `-X list` prints all.",
    ),
]

KAFKAS_NAMES = {
    "idempotence": "enable.idempotence",
    "max_in_flight": "max.in.flight.requests.per.connection",
    "compression": "compression.type",
    "max_wait_ms": "fetch.max.wait.ms",
    "min_bytes": "fetch.min.bytes",
    "max_bytes": "fetch.max.bytes",
    "max_partition_bytes": "max.partition.fetch.bytes",
}
"""Fields whose names are not Kafka's with `_` for `.`."""
NOT_ON_A_COMMAND_LINE = frozenset({"bootstrap", "security", "record_headers", "window_ms", "group_id"})
"""Fields that have options of their own, or no text."""
_BOOLEANS = {"true": True, "false": False}
_LIST = "list"


def settings_names(kind: type) -> dict[str, str]:
    """Return the field of each setting of a settings class, by Kafka's name."""
    names = [field.name for field in fields(kind) if field.name not in NOT_ON_A_COMMAND_LINE]
    return {KAFKAS_NAMES.get(name, name.replace("_", ".")): name for name in names}


def parse_client_settings(assignments: Iterable[str] | None, *kinds: type) -> list[dict[str, Any]]:
    """Return the fields that `-X` sets, for each of the settings classes that has them.

    Raises ConfigurationError for a name that none has, and for a value that is not of the field's type. Bounds are
    checked by the classes.
    """
    parsed: list[dict[str, Any]] = [{} for _ in kinds]
    names = [settings_names(kind) for kind in kinds]
    for key, text in parse_assignments(assignments or ()).items():
        if not any(key in known for known in names):
            near = get_close_matches(key, {name for known in names for name in known}, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigurationError(f"-X {key}", f"is not a setting of this command{hint} (-X list prints all)")
        for kind, known, values in zip(kinds, names, parsed, strict=True):
            if key in known:
                values[known[key]] = _value(key, text, get_type_hints(kind)[known[key]])
    return parsed


def asks_for_list(assignments: Iterable[str] | None) -> bool:
    """True if `-X list` is given."""
    return _LIST in (assignments or ())


def describe_settings(*kinds: type) -> list[tuple[str, object]]:
    """Return the settings of the classes and their defaults, sorted by Kafka's name."""
    found: dict[str, object] = {}
    for kind in kinds:
        defaults = {field.name: field.default for field in fields(kind)}
        for name, field in settings_names(kind).items():
            default = defaults[field]
            found.setdefault(name, _shown(default))
    return sorted(found.items())


def _shown(value: object) -> object:
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def _value(key: str, text: str, hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    kinds = get_args(hint) if get_origin(hint) in {UnionType} or isinstance(hint, UnionType) else (hint,)
    kind = next(each for each in kinds if each is not type(None))
    if kind is bool:
        return _chosen(key, text.lower(), _BOOLEANS)
    if kind is int:
        return _integer(key, text)
    if get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(","))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _chosen(key, text.lower(), _members(kind))
    return text


def _members(kind: type[Enum]) -> Mapping[str, Enum]:
    members = {member.name.lower(): member for member in kind}
    if issubclass(kind, IntEnum):
        members |= {str(member.value): member for member in kind}
    return members


def _chosen(key: str, text: str, values: Mapping[str, Any]) -> Any:
    if text not in values:
        raise ConfigurationError(f"-X {key}", f"is {text!r}, must be one of {', '.join(values)}")
    return values[text]


def _integer(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"-X {key}", f"is {text!r}, must be a number") from None
