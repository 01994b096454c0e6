"""Secrets in settings: values that never show themselves, and texts that name the place where a value is kept.

A setting may hold `${env:NAME}`, `${file:PATH:KEY}` (a file of lines `key=value`) or `${directory:PATH:NAME}` (a file
that holds the value alone), so that a secret stands neither in the settings nor on a command line. Source: KIP-297,
KIP-421 and Kafka's EnvVarConfigProvider, FileConfigProvider and DirectoryConfigProvider.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from pipeline.errors import ConfigurationError

MAX_SECRET_BYTES = 1024 * 1024
"""Largest file that holds a secret; a chain of certificates takes a few KiB."""
MASK = "[hidden]"

_REFERENCE = re.compile(r"\$\{(?P<provider>env|file|directory):(?P<place>[^}]*)\}")


class Secret:
    """A text that shows itself only to `reveal`: not to `repr`, `str`, `format`, an f-string, JSON or a log."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let settings take a text for a secret, and write it as `MASK`."""
        return core_schema.union_schema(
            [
                core_schema.is_instance_schema(cls),
                core_schema.no_info_after_validator_function(cls, core_schema.str_schema()),
            ],
            serialization=core_schema.to_string_ser_schema(),
        )

    @classmethod
    def resolved(cls, key: str, text: str, environ: Mapping[str, str] = os.environ) -> Self:
        """Return the secret that a setting's text holds or names. Raises ConfigurationError."""
        return cls(resolved(key, text, environ))


def holds_secret(annotation: object) -> bool:
    """True if a value of this type may be, or hold, a secret."""
    return annotation is Secret or any(map(holds_secret, get_args(annotation)))


def names_place(text: str) -> bool:
    """True if a text is the place of a value, and nothing else."""
    return _REFERENCE.fullmatch(text) is not None


def without_places(text: str) -> str:
    """Return a text with `x` for each value that is kept elsewhere, to check settings where the values are not."""
    return _REFERENCE.sub("x", text)


def resolved(key: str, text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a setting's text with each `${PROVIDER:PLACE}` replaced by what is kept there.

    Other texts in `${...}` stay. Raises ConfigurationError, which names the setting `key` and the place.
    """

    def found(reference: re.Match[str]) -> str:
        place = reference["place"]
        match reference["provider"]:
            case "env":
                return _of_environment(key, place, environ)
            case "file":
                path, _, name = place.rpartition(":")
                return _of_properties(key, Path(path), name)
            case _:
                path, _, name = place.rpartition(":")
                return _read(key, Path(path) / name).removesuffix("\n")

    return _REFERENCE.sub(found, text)


def _of_environment(key: str, name: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        raise ConfigurationError(key, f"takes its value from the environment variable {name}, which is not set")
    return environ[name]


def _of_properties(key: str, path: Path, name: str) -> str:
    for line in _read(key, path).splitlines():
        found, separator, value = line.partition("=")
        if separator and found.strip() == name and not line.lstrip().startswith(("#", "!")):
            return value.strip()
    raise ConfigurationError(key, f"takes its value from {path}, which has no line {name}=VALUE")


def _read(key: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(key, f"takes its value from {path}, which cannot be read: {error.strerror}") from error
    if len(content) > MAX_SECRET_BYTES:
        raise ConfigurationError(key, f"takes its value from {path}, which has more than {MAX_SECRET_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(key, f"takes its value from {path}, which is not text in UTF-8") from error
