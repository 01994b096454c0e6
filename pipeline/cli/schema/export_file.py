"""Export files: everything that a registry keeps, as JSON, a document on each line.

    {"kind": "registry", "format": 1}
    {"kind": "config", "subject": null, "config": {"compatibilityLevel": "BACKWARD"}}
    {"kind": "mode", "subject": "clicks-value", "mode": "READONLY"}
    {"kind": "schema", "subject": "clicks-value", "version": 1, "id": 7, "schema": "...", "references": [...]}
    {"kind": "end", "lines": 4}

A soft-deleted version has `"deleted": true`. The last line proves that the file is whole. Equal registries have equal
files.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.client.registry.administration import CONTENT, RegistryContents, SchemaEntry
from pipeline.errors import ConfigurationError
from pipeline.settings import MAX_INT32

FORMAT = 1


def write_export(path: Path, contents: RegistryContents) -> None:
    """Write an export; a file of that name is replaced once all is written. Raises ConfigurationError.

    What is no file, as a device or a pipe, is never replaced; a link stays one.
    """
    if path.exists() and not path.is_file():
        raise ConfigurationError(str(path), "is not a file")
    path = path.resolve()
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("w", encoding="ascii") as file:
            for document in _documents(contents):
                file.write(json.dumps(document) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise ConfigurationError(str(path), f"cannot be written: {error.strerror}") from error


def _documents(contents: RegistryContents) -> Iterator[dict[str, Any]]:
    documents: list[dict[str, Any]] = [{"kind": "registry", "format": FORMAT}]
    documents += [
        {"kind": "config", "subject": subject, "config": dict(config)}
        for subject, config in sorted(contents.configs.items(), key=lambda item: item[0] or "")
    ]
    documents += [
        {"kind": "mode", "subject": subject, "mode": mode}
        for subject, mode in sorted(contents.modes.items(), key=lambda item: item[0] or "")
    ]
    for _, entry in sorted(contents.schemas.items()):
        document = {"kind": "schema", "subject": entry.subject, "version": entry.version, "id": entry.id}
        documents.append({**document, **({"deleted": True} if entry.deleted else {}), **entry.content})
    yield from documents
    yield {"kind": "end", "lines": len(documents)}


def read_export(path: Path) -> RegistryContents:
    """Read an export. Raises ConfigurationError, with the line, if the file is not one, is not whole, or is damaged."""
    schemas: dict[tuple[str, int], SchemaEntry] = {}
    configs: dict[str | None, dict[str, Any]] = {}
    modes: dict[str | None, str] = {}
    is_whole = False
    number = 0
    for number, document in enumerate(_read_lines(path), 1):
        try:
            if is_whole:
                raise ValueError("stands after the end")
            match document["kind"]:
                case "registry":
                    _require(number == 1 and document["format"] == FORMAT, f"is not of format {FORMAT}")
                case "end":
                    _require(document["lines"] == number - 1, "is the end of a file of other length")
                    is_whole = True
                case "config":
                    configs[_scope(document["subject"])] = dict(document["config"])
                case "mode":
                    modes[_scope(document["subject"])] = _text(document["mode"])
                case "schema":
                    entry = _entry(document)
                    _require((entry.subject, entry.version) not in schemas, f"is {entry} for the second time")
                    schemas[entry.subject, entry.version] = entry
                case kind:
                    raise ValueError(f"is of unknown kind {kind}")
            _require(number > 1 or document["kind"] == "registry", "does not begin an export")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigurationError(f"{path}: line {number}", reason) from error
    if not is_whole:
        raise ConfigurationError(str(path), f"is not a whole export: it ends after {number} lines")
    return RegistryContents(schemas=schemas, configs=configs, modes=modes)


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    number = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                document = json.loads(line)
                if not isinstance(document, dict):
                    raise ConfigurationError(f"{path}: line {number}", "is not a JSON object")
                yield document
    except OSError as error:
        raise ConfigurationError(str(path), f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: line {number}", f"is not JSON: {error}") from error


def _entry(document: dict[str, Any]) -> SchemaEntry:
    content = {name: document[name] for name in CONTENT if document.get(name)}
    content["schema"] = _text(document["schema"])
    entry = SchemaEntry(
        subject=_text(document["subject"]),
        version=_number(document["version"], 1),
        id=_number(document["id"], 0),
        content=content,
        deleted=bool(document.get("deleted", False)),
    )
    for name, subject, _ in entry.references:
        _text(name)
        _text(subject)
    return entry


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise ValueError(reason)


def _scope(value: object) -> str | None:
    return None if value is None else _text(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    value.encode()
    return value


def _number(value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_INT32:
        raise TypeError(f"{value!r} is not a number from {least} to {MAX_INT32}")
    return value
