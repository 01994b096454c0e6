"""Values of a topic as columns of Spark: Avro datums, evolved to one schema of the registry.

The schema is looked up once, where Spark asks for the schema of the source, and goes to all workers with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import trio
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from pipeline.client.registry.client import SchemaRegistryError, open_schema_registry
from pipeline.client.registry.references import complete_text
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.hadoop.avro.avro_columns import RECORD_FIELDS, DatumColumns
from pipeline.hadoop.avro.avro_kernels import FAULT_REASONS, DatumFault
from pipeline.hadoop.avro.avro_schema import SchemaError, parse, schema_table
from pipeline.hadoop.avro.datums import NO_SCHEMA, ByteColumn, DatumSchema, DatumSchemas, schema_ids
from pipeline.hadoop.avro.registry_lookup import RegistryLookup
from pipeline.hadoop.source.options import ValueOptions


class BadValueError(PipelineError):
    """A value is no datum of its schema. Option `onBadRecord=null` makes such values null."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(f"{topic}-{partition} offset {offset}: {reason} (onBadRecord=null makes such values null)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchema:
    """Schema that values are evolved to; picklable."""

    schema_id: int
    text: str


def find_schema(options: ValueOptions, topics: Sequence[str]) -> ValueSchema:
    """Return the schema of the subject: that of the only topic, or `valueSubject`.

    Raises ConfigurationError, and as the client of the registry.
    """
    subject = options.subject
    if subject is None:
        if len(topics) != 1:
            raise ConfigurationError("valueSubject", "is missing: valueFormat=avro reads one topic, or needs a subject")
        subject = f"{topics[0]}-value"

    async def fetch() -> ValueSchema:
        async with open_schema_registry(options.registry, login=options.login) as registry:
            found = await registry.version(subject, options.version)
            return ValueSchema(schema_id=found.id, text=await complete_text(registry, found.schema))

    try:
        return trio.run(fetch)
    except SchemaRegistryError as error:
        raise ConfigurationError("valueFormat", f"avro: subject {subject}: {error}") from error


class ValueColumn:
    """Decodes values of one topic into a column."""

    def __init__(self, options: ValueOptions, schema: ValueSchema) -> None:
        """Raises ConfigurationError for a schema that has no columns."""
        self._fails = options.fails_on_bad_record
        self._schemas = DatumSchemas(RegistryLookup(options.registry, options.login))
        try:
            parsed = parse(schema.text)
            reader = DatumSchema(schema.schema_id, schema.text, parsed, schema_table(parsed))
            self._columns = DatumColumns(reader)
        except SchemaError as error:
            raise ConfigurationError("valueFormat", f"avro: schema {schema.schema_id}: {error}") from error
        fields = list(self._columns.schema)[len(RECORD_FIELDS) :]
        self._is_record = isinstance(parsed, dict) and parsed["type"] in {"record", "error"}
        self._type = pa.struct(fields) if self._is_record else fields[0].type

    @property
    def spark_type(self) -> DataType:
        """Type of the column."""
        return from_arrow_type(_portable(self._type), prefer_timestamp_ntz=True)

    def decode(self, rows: pa.RecordBatch, topic: str, partition: int, wanted: pa.DataType) -> pa.Array:
        """Return the values of a partition's rows as `wanted`, null for tombstones.

        Raises BadValueError, and as the registry.
        """
        values = ByteColumn.of(rows.column("value"))
        ids, framing = schema_ids(values)
        faults = {int(row): FAULT_REASONS[DatumFault(int(framing[row]))] for row in np.flatnonzero(framing)}
        writers = []
        for schema_id in np.unique(ids[ids != NO_SCHEMA]).tolist():
            at = np.flatnonzero(ids == schema_id)
            try:
                schema = self._schemas.get(schema_id)
                self._columns.dropped_fields(schema)
            except SchemaError as error:
                faults |= dict.fromkeys(at.tolist(), f"schema {schema_id}: {error}")
                continue
            writers.append((schema, at))
        decoded, undecodable = self._columns.decode(values, writers)
        faults |= undecodable
        if faults and self._fails:
            row = min(faults)
            raise BadValueError(topic, partition, rows.column("offset").to_pylist()[row], faults[row])
        column: pa.Array = decoded if self._is_record else decoded.field(0)
        if faults:
            bad = np.zeros(len(column), dtype=np.bool_)
            bad[list(faults)] = True
            column = column.take(pa.array(np.arange(len(column)), mask=bad))
        cast: pa.Array = column.cast(wanted, safe=False)
        return cast


def _portable(data_type: Any) -> Any:
    """Return the nearest Arrow type that all versions of Spark have."""
    kinds = pa.types
    if kinds.is_struct(data_type):
        return pa.struct([pa.field(field.name, _portable(field.type)) for field in data_type])
    if kinds.is_map(data_type):
        return pa.map_(data_type.key_type, _portable(data_type.item_type))
    if kinds.is_list(data_type):
        return pa.list_(_portable(data_type.value_type))
    if kinds.is_fixed_size_binary(data_type):
        return pa.binary()
    if kinds.is_time(data_type):
        return pa.int32() if kinds.is_time32(data_type) else pa.int64()
    if kinds.is_timestamp(data_type):
        return pa.timestamp("us", tz=data_type.tz)
    return data_type
