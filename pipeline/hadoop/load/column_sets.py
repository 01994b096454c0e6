"""Chooses the columns of each writer's schema: those of the table's schema of its type, or its own.

Invariants:

A. A topic's record types have files of their own. A type without a schema of the table gets its own columns.
B. No field is lost silently. A writer's schema that the table's subject has later than the table's own, or does not
   have at all, gets its own columns if the table's would drop a field of it. Only fields that an earlier version had
   are dropped, as Avro's rules have it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.hadoop.avro.avro_columns import DatumColumns
from pipeline.hadoop.avro.avro_resolution import is_readable
from pipeline.hadoop.avro.avro_schema import SchemaNode, SchemaTable
from pipeline.hadoop.avro.column_types import branches_of
from pipeline.hadoop.avro.datums import DatumSchema, compiled
from pipeline.hadoop.commit.manifest import TableSchema

SubjectVersions = Callable[[int], Sequence[tuple[str, int]]]
"""Picklable function that returns the subjects and versions of a schema id, none for an unknown id."""

OWN_ID: Final = -1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ColumnSet:
    """Columns of one kind of files. `number` tells column sets of a task apart."""

    number: int
    record_type: str | None
    schema_id: int | None
    columns: DatumColumns


class ColumnSets:
    """Column sets of a task, by the writers' schemas."""

    def __init__(self, schemas: Sequence[TableSchema], versions: SubjectVersions | None) -> None:
        self._versions = versions
        self._tables = [(schema, compiled(_id_of(schema), schema.text)) for schema in schemas]
        self._by_table: dict[int, ColumnSet] = {}
        self._by_writer: dict[int, ColumnSet] = {}
        self.sets: list[ColumnSet] = []

    def only(self) -> ColumnSet | None:
        """Return the columns of the topic's only type, which tombstones have too; None if the table has no such."""
        for at, (schema, _) in enumerate(self._tables):
            if schema.record_type is None:
                return self._of_table(at)
        return None

    def of(self, writer: DatumSchema) -> ColumnSet:
        """Return the columns of a writer's schema. Raises SchemaError for a type that has no columns."""
        known = self._by_writer.get(writer.id)
        if known is None:
            known = self._by_writer[writer.id] = self._choose(writer)
        return known

    def _choose(self, writer: DatumSchema) -> ColumnSet:
        name = type_name(writer.table)
        at = self._table_of(writer)
        if at is None:
            return self._add(name, writer.id, DatumColumns(writer))
        chosen = self._of_table(at)
        if chosen.columns.dropped_fields(writer) and not self._is_earlier(writer.id, self._tables[at][0]):
            return self._add(chosen.record_type, writer.id, DatumColumns(writer))
        return chosen

    def _table_of(self, writer: DatumSchema) -> int | None:
        name = type_name(writer.table)
        for at, (schema, _) in enumerate(self._tables):
            if schema.record_type == name:
                return at
        for at, (schema, reader) in enumerate(self._tables):
            if schema.record_type is None and is_one_type(writer.table, reader.table):
                return at
        return None

    def _of_table(self, at: int) -> ColumnSet:
        if at not in self._by_table:
            schema, reader = self._tables[at]
            self._by_table[at] = self._add(schema.record_type, schema.schema_id, DatumColumns(reader))
        return self._by_table[at]

    def _is_earlier(self, schema_id: int, table: TableSchema) -> bool:
        if self._versions is None or table.version is None:
            return False
        found = [version for subject, version in self._versions(schema_id) if subject == table.subject]
        return bool(found) and max(found) <= table.version

    def _add(self, record_type: str | None, schema_id: int | None, columns: DatumColumns) -> ColumnSet:
        added = ColumnSet(number=len(self.sets), record_type=record_type, schema_id=schema_id, columns=columns)
        self.sets.append(added)
        return added


def _id_of(schema: TableSchema) -> int:
    return OWN_ID if schema.schema_id is None else schema.schema_id


def _root(table: SchemaTable) -> SchemaNode:
    (root, *others) = branches_of(table, 0) or [0]
    return table.nodes[0] if others else table.nodes[root]


def type_name(table: SchemaTable) -> str:
    """Return the full name of a schema's type, or the type if it has no name. A null beside a type does not count."""
    root = _root(table)
    return root.name or root.type


def is_one_type(writer: SchemaTable, reader: SchemaTable) -> bool:
    """Return true if two schemas are versions of one type: the name, or the kind of a type without name, matches."""
    ours, theirs = (branches_of(table, 0) or [0] for table in (writer, reader))
    return any(is_readable(writer.nodes[one], reader.nodes[other]) for one in ours for other in theirs)
