"""Settings of the tasks of a load, in a module that the driver imports without the kernels of the workers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.hadoop.commit.layout import PathFormat
from pipeline.hadoop.commit.manifest import TableSchema
from pipeline.hadoop.files.doors import DEFAULT_TIMEOUT_S

if TYPE_CHECKING:
    from pipeline.hadoop.avro.datums import SchemaLookup
    from pipeline.hadoop.load.column_sets import SubjectVersions


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Values that all tasks of a run share; picklable. `schemas` is None if values are plain bytes.

    Columns are those of `table_schemas`, and with `has_table_types` have the types that a table has for them
    (`table_type`). `is_iceberg` gives columns and folders the names that they have beside an Iceberg table. `versions`
    tells whether a schema is later than the table's.
    """

    root: str
    topic: str
    run_id: str
    format: str
    codec: str
    window_ms: int
    quarantine: bool
    schemas: "SchemaLookup | None"
    path_format: PathFormat
    has_table_types: bool = False
    is_iceberg: bool = False
    table_schemas: tuple[TableSchema, ...] = ()
    versions: "SubjectVersions | None" = None
    store_timeout_s: float = DEFAULT_TIMEOUT_S
