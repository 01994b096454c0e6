"""Settings files: TOML whose nested tables are flattened to dotted names, which are Kafka's."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigurationError
from pipeline.settings import flatten, settings_text

Settings = dict[str, Any]

_LONGER_NAME = '; beside topics = [...], a longer name such as "topics.exclude" needs quotes'
HINTS = {
    "Invalid value": "; text needs quotes",
    "Cannot mutate immutable namespace": _LONGER_NAME,
    "Cannot overwrite a value": _LONGER_NAME,
}
"""Ends of messages, by the words with which the TOML reader refuses a file."""


def read_settings(path: Path) -> Settings:
    """Return the settings of a TOML file by dotted name; `[[name]]` arrays of tables become lists of flat settings.

    Raises ConfigurationError if the file cannot be read, is not TOML, or has a setting twice.
    """
    document = read_document(path)
    try:
        return flatten(document)
    except RecursionError as error:
        raise ConfigurationError(str(path), f"is not TOML: {error}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error.key}", error.reason) from error


def read_document(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises ConfigurationError if the file cannot be read, or is not TOML."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigurationError(str(path), f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not even UTF-8, or nested too deeply
        hint = next((text for sign, text in HINTS.items() if sign in str(error)), "")
        raise ConfigurationError(str(path), f"is not TOML: {error}{hint}") from error


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """`["a.b=1"]` becomes `{"a.b": "1"}`. Raises ConfigurationError for an entry without `=`."""
    parsed: dict[str, str] = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not key.strip():
            raise ConfigurationError(assignment, "is not of the form key=value")
        parsed[key.strip()] = value.strip()
    return parsed


def parse_changes(set_: Iterable[str] | None, unset: Iterable[str] | None) -> dict[str, str | None]:
    """Return the settings of `--set` and, as None, those of `--unset`. Raises ConfigurationError, also for none."""
    wanted = parse_assignments(set_ or ())
    removed = dict.fromkeys(unset or ())
    if not wanted and not removed:
        raise ConfigurationError("--set", "is missing: give --set KEY=VALUE or --unset KEY")
    if both := sorted(wanted.keys() & removed.keys()):
        raise ConfigurationError(f"--unset {both[0]}", "is given, and so is --set: give one of them")
    return {**wanted, **removed}


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write flat settings as TOML that `read_settings` reads back; lists of flat settings become arrays of tables.

    Passwords may be among them: the file belongs to its owner alone.
    """
    path.unlink(missing_ok=True)  # another mode, or a link
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(settings_text(settings))
