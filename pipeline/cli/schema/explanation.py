"""Incompatibilities in detail: which field, which rule, what was there and what comes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.cli.schema.references import AVRO, self_contained
from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.avro.parsing import InvalidSchemaError, parse_schema
from pipeline.schema_registry.avro.resolution import why_unreadable
from pipeline.schema_registry.avro.types import AvroSchema, Enum, Fixed, RecordSchema
from pipeline.schema_registry.avro.work import TooMuchWorkError
from pipeline.schema_registry.rules.named_types import parse_json, words_at

if TYPE_CHECKING:
    from pipeline.client.registry.administration import RegistryAdministration

MAX_REASONS_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReason:
    """A field that a reader cannot take. `version` is the version compared with, `reader` new or old."""

    field: str
    rule: str
    version: int | None = None
    reader: str | None = None
    old: str | None = None
    new: str | None = None
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        """The reason as `--json` prints it."""
        return {
            "version": self.version,
            "reader": self.reader,
            "field": self.field,
            "rule": self.rule,
            "old": self.old,
            "new": self.new,
            "message": self.message,
        }


async def explain(registry: "RegistryAdministration", subject: str, text: str) -> list[SchemaReason]:
    """Return why a schema cannot follow the versions that the subject's level names, by this program's rules.

    Empty if these rules find nothing, or versions cannot be compared: the registry's own sentences hold.
    """
    from pipeline.client.registry.client import SchemaRegistryError

    config = await registry.config(subject, inherited=True) or {}
    try:
        level = CompatibilityLevel(config.get("compatibilityLevel", ""))
        new = parse_schema(text, check_defaults=False)
    except (ValueError, InvalidSchemaError):
        return []
    try:
        numbers = await registry.versions(subject)
    except SchemaRegistryError as error:
        if error.status == 404:
            return []
        raise
    reasons: list[SchemaReason] = []
    for number in numbers if level.transitive else numbers[-1:]:
        entry = await registry.version(subject, number)
        if entry.schema_type != AVRO:
            continue
        try:
            old = parse_schema(await self_contained(registry, entry), check_defaults=False)
        except InvalidSchemaError:
            continue
        if level.backward:
            reasons += reasons_of(number, "new", reader=new, writer=old)
        if level.forward:
            reasons += reasons_of(number, "old", reader=old, writer=new)
    return reasons[:MAX_REASONS_SHOWN]


def reasons_of(
    version: int | None, reader_name: str, *, reader: AvroSchema, writer: AvroSchema
) -> Sequence[SchemaReason]:
    """Return why a reader cannot read a writer's data. `reader_name` tells if the reader is the new or the old one."""
    try:
        found = why_unreadable(reader=reader, writer=writer)
    except TooMuchWorkError as error:
        return [SchemaReason(version=version, reader=reader_name, field="", rule="TOO_MUCH_WORK", message=str(error))]
    reader_json, writer_json = parse_json(reader.text), parse_json(writer.text)
    names = 1 if isinstance(reader.root, Fixed | Enum | RecordSchema) else 0  # the root's own name begins its paths
    reasons = []
    for each in found:
        in_reader, in_writer = words_at(reader_json, each.path[names:]), words_at(writer_json, each.path[names:])
        old, new = (in_writer, in_reader) if reader_name == "new" else (in_reader, in_writer)
        reasons.append(
            SchemaReason(
                version=version,
                reader=reader_name,
                field="".join(p if p.startswith("[") else f".{p}" for p in each.path).removeprefix("."),
                rule=str(each.kind),
                old=old,
                new=new,
                message=each.message,
            )
        )
    return reasons
