"""Settings of services: models of dotted names, checked once, with errors that name the key.

A setting is declared once: a field with its dotted name as alias, type, default and bounds. The docstring under the
field is the setting's description, which the tables of docs/*.md show.
"""

import ast
import difflib
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from pipeline.credentials import MASK, holds_secret
from pipeline.errors import ConfigurationError
from pipeline.model import HostPort

MAX_INT16 = 2**15 - 1
MAX_INT32 = 2**31 - 1
MAX_FAULTS = 20
"""Wrong settings that one error names."""
_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "greater_than_equal": "must be at least {ge}",
        "greater_than": "must be greater than {gt}",
        "less_than_equal": "must be at most {le}",
        "less_than": "must be less than {lt}",
        **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
        **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "must be a number"),
        **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
        **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
        "string_type": "must be text in quotes",
        "string_too_short": "must have at least {min_length} character{s}",
        "string_too_long": "must have at most {max_length} character{s}",
        "too_short": "must have at least {min_length} item{s}",
        "too_long": "must have at most {max_length} item{s}",
        "string_pattern_mismatch": "must match the regular expression {pattern}",
        "literal_error": "must be {expected}",
        "enum": "must be {expected}",
    }
)
"""Reasons by the kind of a fault, for people who do not know pydantic."""
MAX_SHOWN = 300
"""Characters of a value that logs show."""
_LOGIN = re.compile(r"//[^/@\s]*@")
_ENDPOINT = re.compile(r"(?:\[(?P<bracketed>[0-9A-Fa-f:.]+)\]|(?P<plain>[^\[\]:/ ]*)):(?P<port>[0-9]{1,5})")


def parse_address(text: str) -> HostPort:
    """Parse `host:port`, `[v6]:port` or `:port`. Raises ValueError."""
    matched = _ENDPOINT.fullmatch(text.strip())
    if matched is None or int(matched["port"]) > 65535:
        raise ValueError(f"{text!r} is not host:port")
    host = matched["bracketed"] or matched["plain"]
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"{text!r} is not host:port: no host has such a name ({error})") from None
    return HostPort(host, int(matched["port"]))


def parse_addresses(text: str) -> tuple[HostPort, ...]:
    """Parse a comma-separated bootstrap list of at least one address. Raises ValueError."""
    return tuple(parse_address(part) for part in text.split(","))


def parsed_by(parse: Callable[[str], object]) -> BeforeValidator:
    """Make a type accept text, which `parse` turns into a value or refuses with ValueError."""

    def parse_text(value: object) -> object:
        match value:
            case str():
                return parse(value)
            case int() | float() | list():
                raise ValueError("must be text in quotes")
            case _:  # parsed already
                return value

    return BeforeValidator(parse_text)


Address = Annotated[HostPort, parsed_by(parse_address)]
Addresses = Annotated[tuple[HostPort, ...], parsed_by(parse_addresses)]


class SettingsModel(BaseModel):
    """Base of the settings of a service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    service: ClassVar[str]
    """Name of the service, for error messages."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Check a mapping of dotted names to values. Raises ConfigurationError with all wrong keys."""
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            raise _configuration_error(cls, error) from error

    def changed(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, by dotted name, as a log may show them: without secrets.

        Settings of a model within this one stand beside the others; tables of a list are a list of such mappings.
        """
        found: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            value, alias = getattr(self, name), str(field.alias)
            if name not in self.model_fields_set or value == field.get_default():
                continue
            if isinstance(value, SettingsModel):
                prefix = alias[: alias.rfind(".") + 1]
                within = value.changed().items()
                found |= {key if key.startswith(prefix) else f"{prefix}{key}": item for key, item in within}
            else:
                found[alias] = MASK if holds_secret(field.annotation) or not field.repr else _shown(value)
        return found

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return the descriptions by dotted name, each in one line."""
        texts = _docstrings(cls)
        return {
            str(field.alias): " ".join((field.description or texts.get(name, "")).split())
            for name, field in cls.model_fields.items()
        }


def _shown(value: object) -> Any:
    """Return a value as a log shows it."""
    match value:
        case None | bool() | int() | float():
            return value
        case Enum():
            return value.value
        case SettingsModel():
            return value.changed()
        case Mapping():
            return {str(key): _shown(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            items = [_shown(item) for item in value]
            return items if any(isinstance(item, dict) for item in items) else ",".join(map(str, items))
        case _:
            text = _LOGIN.sub(f"//{MASK}@", str(value))
            return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"


@cache
def _docstrings(model: type[SettingsModel]) -> dict[str, str]:
    """Return the docstrings under the fields, by name. A service that starts does not read them."""
    texts: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, SettingsModel):
            (declared,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
            assert isinstance(declared, ast.ClassDef)
            for field, text in itertools.pairwise(declared.body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                        texts[name] = said
    return texts


def hint(key: str, model: type[SettingsModel]) -> str:
    """Return the end of an error about an unknown setting: the most similar name, if any."""
    near = difflib.get_close_matches(key, [str(field.alias) for field in model.model_fields.values()], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def reason_of(error: Any) -> str:
    """Return the fault of a value, from an entry of `ValidationError.errors`."""
    if (said := _REASONS.get(error["type"])) is not None:
        found = error.get("ctx", {})
        plural = "s" if found.get("min_length", found.get("max_length")) != 1 else ""
        return said.format_map({**found, "s": plural})
    reason = re.sub(r"^\w+ should |, unable to (parse|interpret).*| after validation", "", str(error["msg"]))
    return f"must {reason}" if reason != error["msg"] else reason.removeprefix("Value error, ")


def checked_together(*checks: Callable[[], Any]) -> list[Any]:
    """Return what the checks return. Raises one ConfigurationError with the faults that all of them find."""
    found, faults = [], []
    for check in checks:
        try:
            found.append(check())
        except ConfigurationError as error:
            faults.append(error)
    if faults:
        first, *others = faults
        raise ConfigurationError(first.key, "; ".join([first.reason, *map(str, others)])) from first
    return found


def _configuration_error(model: type[SettingsModel], error: ValidationError) -> ConfigurationError:
    """Return one error for all faults: the first fault of each key, in the order of the fields."""
    entries: list[Any] = error.errors(include_url=False)
    missing = tuple(f"{entry['loc'][0]}." for entry in entries if entry["type"] == "missing")
    faults: dict[str, ConfigurationError] = {}
    for entry in entries:
        if entry["type"] == "extra_forbidden" and str(entry["loc"][0]).startswith(missing):
            continue  # of a table that stands for a list of tables
        fault = _fault(model, entry)
        faults.setdefault(str(entry["loc"][0]) if entry["loc"] else fault.key, fault)
    first, *others = faults.values()
    named = [str(fault) for fault in others[: MAX_FAULTS - 1]]
    if len(others) >= MAX_FAULTS:
        named.append(f"and {len(others) - len(named)} more")
    return ConfigurationError(first.key, "; ".join([first.reason, *named]))


def _fault(model: type[SettingsModel], found: Any) -> ConfigurationError:
    key = ".".join(str(part) for part in found["loc"])
    reason = reason_of(found)
    match found["type"]:
        case "missing" if any(str(name).startswith(f"{key}.") for name in found["input"]):  # a table, flattened
            return ConfigurationError(key, f"must be a list of tables: write [[{key}]]")
        case "missing":
            return ConfigurationError(key, "is missing")
        case "extra_forbidden":
            return ConfigurationError(key, f"is not a setting of the {model.service}{hint(key, model)}")
        case _ if isinstance(found["input"], Mapping):
            named = [str(field.alias) for field in model.model_fields.values() if str(field.alias) in reason]
            leading = next((name for name in named if reason.startswith(f"{name} ")), None)
            if leading is not None:
                return ConfigurationError(leading, reason.removeprefix(f"{leading} "))
            return ConfigurationError(key or ", ".join(named) or f"settings of the {model.service}", reason)
        case _ if _is_secret(model, found["loc"]):
            return ConfigurationError(key, reason)
        case _:
            return ConfigurationError(key, f"{reason} (given: {found['input']!r})")


def _is_secret(model: type[SettingsModel], place: Sequence[object]) -> bool:
    """True if a fault is of a setting that holds a secret, which no error may show."""
    kinds = [field.annotation for field in model.model_fields.values() if place and field.alias == place[0]]
    return any(map(holds_secret, kinds))


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"log": {"dirs": "d"}}` becomes `{"log.dirs": "d"}`. Raises ConfigurationError if two values get one name."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found = flatten(value, f"{name}.")
        elif _is_tables(value):
            found = {name: [flatten(item) for item in value]}
        else:
            found = {name: value}
        twice = flat.keys() & found.keys()
        if twice:
            raise ConfigurationError(min(twice), "is set twice, as a quoted key and as a dotted key or in a table")
        flat |= found
    return flat


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return flat settings as TOML, from which `flatten` makes them again; lists of them become arrays of tables."""
    lines = [f"{_quoted(key)} = {_literal(value)}" for key, value in settings.items() if not _is_tables(value)]
    for key, value in settings.items():
        if _is_tables(value):
            for table in value:
                lines.append(f"\n[[{_quoted(key)}]]")
                lines.extend(f"{_quoted(name)} = {_literal(item)}" for name, item in table.items())
    return "\n".join(lines) + "\n"


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _quoted(text: str) -> str:
    escaped = "".join(
        f"\\u{ord(c):04X}" if ord(c) < 0x20 or ord(c) == 0x7F else f"\\{c}" if c in '"\\' else c for c in text
    )
    return f'"{escaped}"'


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return _quoted(str(value))
