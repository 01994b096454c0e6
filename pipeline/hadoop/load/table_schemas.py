"""Finds the schemas that a topic's columns are evolved to: the latest versions of its subjects in the registry.

All tasks of a run use the schemas of its plan. A record type of no known subject keeps the schema of the last commit.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from pipeline.client.registry.client import SchemaRegistryClient, SchemaRegistryError, open_schema_registry
from pipeline.client.registry.errors import SerializationError
from pipeline.client.registry.references import complete_text
from pipeline.client.registry.subjects import value_subject
from pipeline.hadoop.avro.avro_schema import SchemaError
from pipeline.hadoop.commit.manifest import DataFile, TableSchema
from pipeline.hadoop.load.config import LoadConfig, SubjectStrategy

NO_SUBJECT: Final = frozenset({40401, 40402})
_FULL_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


async def latest_schemas(
    registry: SchemaRegistryClient, topic: str, strategy: SubjectStrategy, known_types: Iterable[str] = ()
) -> tuple[TableSchema, ...]:
    """Return the latest schema of each of the topic's record types. A missing subject is no error: it has none.

    `known_types` are record types that earlier loads met: subjects of RecordNameStrategy do not name their topics.
    Raises the errors of the registry's client.
    """
    subjects: dict[str | None, str] = {}
    match strategy:
        case "TopicNameStrategy":
            subjects[None] = value_subject(topic)
        case "RecordNameStrategy":
            subjects.update((name, name) for name in sorted(known_types))
        case "TopicRecordNameStrategy":
            prefix = f"{topic}-"
            for subject in sorted(await registry.subjects()):
                name = subject.removeprefix(prefix)
                if subject.startswith(prefix) and _FULL_NAME.fullmatch(name):
                    subjects[name] = subject
    found = [await _latest(registry, record_type, subject) for record_type, subject in subjects.items()]
    return tuple(schema for schema in found if schema is not None)


async def _latest(registry: SchemaRegistryClient, record_type: str | None, subject: str) -> TableSchema | None:
    try:
        latest = await registry.version(subject)
        text = await complete_text(registry, latest.schema)
    except SerializationError as error:
        raise SchemaError(f"{subject}: {error}") from error
    except SchemaRegistryError as error:
        if error.code in NO_SUBJECT:
            return None
        raise
    return TableSchema(record_type=record_type, subject=subject, version=latest.version, schema_id=latest.id, text=text)


async def plan_schemas(config: LoadConfig, previous: Iterable[TableSchema]) -> tuple[TableSchema, ...]:
    """Return the schemas of a load: the latest ones, and those of `previous` (the last commit) for other types.

    None for a load without columns. Raises SchemaError for a latest schema whose values have no columns, and the errors
    of the registry's client.
    """
    if config.format != "parquet" or config.value_format != "avro":
        return ()
    from pipeline.hadoop.avro.column_types import check_columns

    kept = {schema.record_type: schema for schema in previous}
    known = [record_type for record_type in kept if record_type is not None]
    async with open_schema_registry(config.registry, login=config.login) as registry:
        latest = await latest_schemas(registry, config.topic, config.value_subject_name_strategy, known)
    for schema in latest:
        try:
            check_columns(schema.text)
        except SchemaError as error:
            raise SchemaError(f"subject {schema.subject}, version {schema.version}: {error}") from error
        kept[schema.record_type] = schema
    return tuple(kept[key] for key in sorted(kept, key=lambda key: key or ""))


def with_found_types(
    schemas: Iterable[TableSchema], files: Iterable[DataFile], lookup: Callable[[int], str]
) -> tuple[TableSchema, ...]:
    """Return the schemas of a commit: those of its plan, and for each other record type that its files have the schema
    with the highest id. The next load asks for the subject of such a type.
    """
    known = {schema.record_type: schema for schema in schemas}
    found: dict[str, int] = {}
    for file in files:
        if file.record_type is not None and file.schema_id is not None and file.record_type not in known:
            found[file.record_type] = max(file.schema_id, found.get(file.record_type, file.schema_id))
    for record_type, schema_id in sorted(found.items()):
        known[record_type] = TableSchema(
            record_type=record_type, subject=None, version=None, schema_id=schema_id, text=lookup(schema_id)
        )
    return tuple(known.values())
