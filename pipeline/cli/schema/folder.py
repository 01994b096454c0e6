"""Schemas of a service repository: a folder of `.avsc` files, the subjects that they belong to, and their types.

A file `SUBJECT.avsc` (or `.AVSC`), at any depth, belongs to that subject. If the folder holds a file `subjects.toml`,
that names the subjects and their files instead; all other `.avsc` files then only define types for them.

A schema may use types that other files of the folder define. What is wrong with a file is kept as its fault, so that
one such file does not hide what is wrong with others.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.cli.schema.access import parse_reference
from pipeline.cli.terminal.settings import read_document
from pipeline.errors import ConfigurationError
from pipeline.schema_registry.avro.parsing import InvalidSchemaError
from pipeline.schema_registry.rules.named_types import TypeUse, named_types, parse_json, unknown_names

SUFFIX = ".avsc"
SUBJECTS_FILE = "subjects.toml"
MAX_FILE_BYTES = 4_000_000
"""Larger files are no schemas that a registry would take."""
MAX_CHAIN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSchema:
    """A file. `subject` is None for one that only defines types."""

    path: Path
    subject: str | None
    references: tuple[Mapping[str, Any], ...] = ()
    """References to versions in the registry."""
    text: str = ""
    fault: str | None = None
    types: Mapping[str, TypeUse] = field(default_factory=dict)
    """Types that the file defines, by full name."""
    needed: tuple[str, ...] = ()
    """Full names of types that other files define."""


@dataclass(frozen=True, slots=True)
class SchemaFolder:
    """The files of a folder, sorted by subject and path."""

    schemas: tuple[FolderSchema, ...]

    def subjects(self) -> dict[str, list[FolderSchema]]:
        """Return the subjects with their files: more than one is a mistake."""
        found: dict[str, list[FolderSchema]] = {}
        for schema in self.schemas:
            if schema.subject is not None:
                found.setdefault(schema.subject, []).append(schema)
        return dict(sorted(found.items()))

    def needs(self, schema: FolderSchema) -> list[FolderSchema]:
        """Return the files that define types which a schema uses, also through others, each after those that it needs.

        Types that no file defines are left out. Raises InvalidSchemaError for a circle, for a type that several files
        define, and for a chain of more than MAX_CHAIN files.
        """
        defining: dict[str, list[FolderSchema]] = {}
        for each in self.schemas:
            for name in each.types:
                defining.setdefault(name, []).append(each)
        found: dict[Path, FolderSchema] = {}
        _collect(schema, [schema.path], defining, found)
        return list(found.values())


def _collect(
    schema: FolderSchema,
    chain: list[Path],
    defining: Mapping[str, list[FolderSchema]],
    found: dict[Path, FolderSchema],
) -> None:
    for name in schema.needed:
        others = [other for other in defining.get(name, ()) if other.path != schema.path]
        if len(others) > 1:
            files = " and ".join(other.path.name for other in others[:2])
            raise InvalidSchemaError("", f"type {name} is defined in {files}")
        for other in others:
            if other.path in chain:
                circle = [*chain[chain.index(other.path) :], other.path]
                raise InvalidSchemaError("", f"files need one another: {' -> '.join(path.name for path in circle)}")
            if len(chain) > MAX_CHAIN:
                raise InvalidSchemaError("", f"needs types through more than {MAX_CHAIN} files")
            if other.path not in found:
                _collect(other, [*chain, other.path], defining, found)
                found[other.path] = other


def read_folder(folder: Path) -> SchemaFolder:
    """Read the schemas of a folder. Raises ConfigurationError if it holds none, or for a faulty `subjects.toml`."""
    if not folder.is_dir():
        raise ConfigurationError(str(folder), "is not a folder")
    paths = list(_schema_files(folder))
    names = folder / SUBJECTS_FILE
    if names.exists():
        named = _read_subjects(names)
        taken = {path.resolve() for _, path, _ in named}
        schemas = [read_schema(path, subject, references) for subject, path, references in named]
        schemas += [read_schema(path, None) for path in paths if path.resolve() not in taken]
    else:
        schemas = [read_schema(path, path.name[: -len(SUFFIX)]) for path in paths]
    if not any(schema.subject is not None for schema in schemas):
        reason = f"names no subject in {SUBJECTS_FILE}" if names.exists() else f"holds no file SUBJECT{SUFFIX}"
        raise ConfigurationError(str(folder), reason)
    return SchemaFolder(tuple(sorted(schemas, key=lambda schema: (schema.subject or "", schema.path))))


def _schema_files(folder: Path) -> Iterator[Path]:
    """Find the files, without following links to folders; hidden folders are left out."""

    def fail(error: OSError) -> None:
        raise ConfigurationError(str(error.filename), f"cannot be read: {error.strerror}") from error

    for parent, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (
            Path(parent, name) for name in sorted(files) if name.lower().endswith(SUFFIX) and name.lower() != SUFFIX
        )


def _read_subjects(path: Path) -> list[tuple[str, Path, tuple[Mapping[str, Any], ...]]]:
    named: list[tuple[str, Path, tuple[Mapping[str, Any], ...]]] = []
    for subject, value in read_document(path).items():
        table = {"file": value} if isinstance(value, str) else value
        known = isinstance(table, dict) and table.keys() <= {"file", "references"}
        file, references = (table.get("file"), table.get("references", [])) if known else (None, [])
        if not isinstance(file, str) or not isinstance(references, list):
            reason = 'needs a file: "FILE.avsc", or a table with file = "FILE.avsc" and references = ["..."]'
            raise ConfigurationError(f"{path}: {subject}", reason)
        try:
            parsed = tuple(parse_reference(str(reference)) for reference in references)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {subject}", f"reference {error.reason}") from error
        named.append((subject, path.parent / file, parsed))
    return named


def read_schema(path: Path, subject: str | None, references: tuple[Mapping[str, Any], ...] = ()) -> FolderSchema:
    """Read a file with what a check needs to know of it; its fault, if it cannot be read, or is not JSON."""
    try:
        text = _read_schema_text(path)
        root = parse_json(text)
        types, needed = named_types(root), tuple(unknown_names(root))
    except InvalidSchemaError as error:
        return FolderSchema(path=path, subject=subject, fault=str(error))
    return FolderSchema(path=path, subject=subject, references=references, text=text, types=types, needed=needed)


def _read_schema_text(path: Path) -> str:
    """Return the text of a file that anybody may have put there. Raises InvalidSchemaError."""
    try:
        if not path.is_file() and path.exists():
            raise InvalidSchemaError("", "is not a file")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise InvalidSchemaError("", f"is larger than {MAX_FILE_BYTES} bytes")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise InvalidSchemaError("", f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidSchemaError("", "is not UTF-8 text") from error
