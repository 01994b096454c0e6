"""Options of `produce` and `consume` about schemas, and what they open."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.foreground import REGISTRY_TIMEOUT_S, http_url
from pipeline.cli.terminal.client_config import http_login
from pipeline.cli.terminal.files import read_text
from pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from pipeline.client.registry.avro import AvroSerializer
    from pipeline.client.registry.client import SchemaRegistryClient
    from pipeline.client.registry.schemas import VersionReference

LATEST = "latest"


def http_urls(text: str) -> str:
    """Parse the URLs of registries, separated by commas. Raises typer.BadParameter."""
    return ",".join(map(http_url, text.split(",")))


_CHOICE = "FILE.avsc|ID|latest"
_REFERENCES = "File with a list of the versions that the schema refers to: [{name, subject, version}, ...]."
_STRATEGY = "TopicNameStrategy (default), RecordNameStrategy or TopicRecordNameStrategy"

Registries = Annotated[
    str | None,
    typer.Option("--registry", metavar="URL,...", parser=http_urls, help="Registry of the schemas; more for failover."),
]
ValueSchema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar=_CHOICE,
        help="Encode values, which are JSON, as Avro: by the schema in a file, of an id, or the subject's latest.",
    ),
]
KeySchema = Annotated[
    str | None, typer.Option(metavar=_CHOICE, help="Encode keys, which are JSON, as Avro; with --key-separator.")
]
References = Annotated[Path | None, typer.Option(metavar="FILE.json", help=_REFERENCES)]
KeyReferences = Annotated[Path | None, typer.Option(metavar="FILE.json", help="As --references, for --key-schema.")]
SubjectStrategy = Annotated[str, typer.Option(metavar="NAME", help=f"Subject of --schema: {_STRATEGY}.")]
KeySubjectStrategy = Annotated[str, typer.Option(metavar="NAME", help=f"Subject of --key-schema: {_STRATEGY}.")]
AutoRegister = Annotated[
    bool,
    typer.Option("--auto-register/--no-auto-register", help="Register the schema of a file if its subject lacks it."),
]
Normalize = Annotated[bool, typer.Option("--normalize", help="Let the registry normalise the schema of a file.")]
SchemaIdInHeader = Annotated[
    bool,
    typer.Option(
        "--schema-id-in-header", help="Identify schemas by their GUID in a header, not by their id before the datum."
    ),
]
DEFAULT_STRATEGY = "TopicNameStrategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """Schema of keys or values: `latest`, an id, or the text of a file."""

    choice: str | int
    references: tuple["VersionReference", ...]
    strategy: str
    auto_register: bool
    normalize: bool
    in_header: bool


def read_schema_options(
    choice: str | None,
    references: Path | None,
    strategy: str,
    *,
    auto_register: bool,
    normalize: bool,
    in_header: bool,
) -> SchemaOptions | None:
    """Return the options, with the contents of the files that they name; None without a schema.

    Raises ConfigurationError.
    """
    from pipeline.client.registry.subjects import find_subject_name_strategy

    if choice is None:
        return None
    find_subject_name_strategy(strategy)
    is_id = choice.isascii() and choice.isdigit()
    return SchemaOptions(
        choice=int(choice) if is_id else choice if choice == LATEST else read_text(Path(choice)),
        references=() if references is None else _read_references(references),
        strategy=strategy,
        auto_register=auto_register,
        normalize=normalize,
        in_header=in_header,
    )


def _read_references(path: Path) -> tuple["VersionReference", ...]:
    from pipeline.client.registry.schemas import VersionReference

    try:
        return tuple(
            VersionReference(name=str(each["name"]), subject=str(each["subject"]), version=int(each["version"]))
            for each in json.loads(read_text(path))
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(str(path), "is no JSON list of {name, subject, version}") from error


@asynccontextmanager
async def open_registry(urls: str) -> "AsyncIterator[SchemaRegistryClient]":
    """Open a client of the registries."""
    from pipeline.client.registry.client import open_schema_registry

    async with open_schema_registry(urls.split(","), login=http_login(), timeout_s=REGISTRY_TIMEOUT_S) as registry:
        yield registry


def serializer_of(registry: "SchemaRegistryClient", options: SchemaOptions, *, for_keys: bool) -> "AvroSerializer":
    """Return a serialiser. Raises ConfigurationError."""
    from pipeline.client.registry.avro import AvroSerializer
    from pipeline.client.registry.config import SerializerConfig
    from pipeline.client.registry.framing import SchemaIdSerializer
    from pipeline.client.registry.schemas import SchemaText
    from pipeline.client.registry.subjects import find_subject_name_strategy

    is_latest, is_id = options.choice == LATEST, isinstance(options.choice, int)
    config = SerializerConfig(
        auto_register_schemas=options.auto_register and not is_latest,
        normalize_schemas=options.normalize,
        use_latest_version=is_latest,
        use_schema_id=options.choice if isinstance(options.choice, int) else None,
        subject_name_strategy=find_subject_name_strategy(options.strategy),
        schema_id_serializer=SchemaIdSerializer.HEADER if options.in_header else SchemaIdSerializer.PREFIX,
    )
    schema: Any = None if is_latest or is_id else SchemaText(str(options.choice), options.references)
    return AvroSerializer(registry, schema, config, for_keys=for_keys)
