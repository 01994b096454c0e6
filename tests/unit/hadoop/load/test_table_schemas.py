"""Schemas of the table, from a registry's client that answers from a table."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from pipeline.client.registry.client import SchemaRegistryError
from pipeline.client.registry.schemas import RegisteredSchema
from pipeline.hadoop.avro.avro_schema import SchemaError
from pipeline.hadoop.avro.column_types import check_columns
from pipeline.hadoop.commit.manifest import DataFile, TableSchema
from pipeline.hadoop.load.table_schemas import latest_schemas, with_found_types


class Subjects:
    """A registry with one version of each subject."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    async def subjects(self) -> list[str]:
        return list(self._texts)

    async def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        assert version is None
        if subject not in self._texts:
            raise SchemaRegistryError(404, 40401, "no such subject")
        return RegisteredSchema(subject=subject, version=3, id=7, text=self._texts[subject])


REGISTRY: Any = Subjects(
    {"t-value": '"int"', "shop.Order": '"long"', "t-shop.Order": '"string"', "t-u-Order": '"null"'}
)


@pytest.mark.parametrize(
    ("strategy", "found"),
    [
        ("TopicNameStrategy", [(None, "t-value", '"int"')]),
        ("RecordNameStrategy", [("shop.Order", "shop.Order", '"long"')]),
        ("TopicRecordNameStrategy", [("shop.Order", "t-shop.Order", '"string"'), ("value", "t-value", '"int"')]),
    ],
)
async def test_latest_versions_of_the_subjects_of_a_strategy(strategy: Any, found: list[Any]) -> None:
    schemas = await latest_schemas(REGISTRY, "t", strategy, ["shop.Order", "Unknown"])
    assert [(schema.record_type, schema.subject, schema.text) for schema in schemas] == found
    assert {(schema.version, schema.schema_id) for schema in schemas} == {(3, 7)}
    assert await latest_schemas(REGISTRY, "other", strategy) == ()


def test_a_schema_without_columns_is_refused_by_name() -> None:
    tree = {"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]}
    with pytest.raises(SchemaError, match="type T contains itself and has no column; load the topic as avro"):
        check_columns(json.dumps(tree))
    with pytest.raises(SchemaError, match="the field name _key is taken"):
        check_columns('{"type": "record", "name": "T", "fields": [{"name": "_key", "type": "int"}]}')


def test_types_that_files_have_are_remembered() -> None:
    known = TableSchema(record_type="A", subject="A", version=1, schema_id=1, text="a")
    numbers = [("A", 9), ("B", 4), ("B", 5), (None, 3)]
    files = [
        DataFile(
            path=f"{number}",
            partition=0,
            hour_ms=0,
            records=1,
            bytes=1,
            first_offset=0,
            last_offset=0,
            crc32c=0,
            record_type=record_type,
            schema_id=number,
        )
        for record_type, number in numbers
    ]
    found = with_found_types([known], files, lambda schema_id: f"text of {schema_id}")
    assert found[0] == known
    assert [(schema.record_type, schema.schema_id, schema.text) for schema in found[1:]] == [("B", 5, "text of 5")]
