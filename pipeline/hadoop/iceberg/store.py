"""Commits of a load in a catalog of Iceberg tables: files, offsets and counts in one snapshot.

A load's Parquet files, which carry no field ids, are registered by `add_files`; a name mapping gives them ids.

Invariants:

A. One transaction changes the schema, adds the files and sets the offsets; the catalog carries it out wholly or not.
B. The transaction demands that the current snapshot is the one that the run read its offsets from. pyiceberg would
   repeat a refused commit on top of the new snapshot, so the transaction is handed to the catalog without it.
C. Offsets follow the data: they are those of the newest snapshot of a load among the ancestors of the current one.
   Where that has expired, the table's properties hold them. Their snapshot must then lie before all ancestors that are
   left: otherwise the load was taken back, and another writer may have gone on from before it.
D. Each column of a file has the id of the table's column of its name, by the name mapping. Readers see no values in a
   column that another writer of the table has removed from the mapping.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID
from pyiceberg.transforms import HourTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)
from pyiceberg.types import StructType as IcebergStruct

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.hadoop.avro.avro_schema import HEADERS, ICEBERG_PARTITION, KEY, OFFSET, PARTITION, TIMESTAMP
from pipeline.hadoop.avro.column_types import TOMBSTONE
from pipeline.hadoop.commit.layout import QUARANTINES, topic_layout
from pipeline.hadoop.commit.manifest import Manifest, check_follows
from pipeline.hadoop.commit.publication import CommitConflictError, CommitOutcomeUnknownError, Head
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.iceberg.catalog import NAMESPACE, TIMEOUT_S, open_catalog
from pipeline.hadoop.iceberg.snapshot_properties import (
    ICEBERG_SEQUENCE,
    ICEBERG_SNAPSHOT,
    MANIFEST,
    RUN_ID,
    SHA256,
    TOTALS,
    SnapshotPropertyError,
    manifest_in,
    snapshot_properties,
    table_properties,
)
from pipeline.hadoop.iceberg.window_totals import WindowTotals

if TYPE_CHECKING:
    import pyarrow as pa

logger = get_logger(__name__)

OTHER_WRITER: Final = "of another writer of the table"


class IcebergError(PipelineError):
    """The catalog or pyiceberg refused a commit; certainly nothing was committed."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"{topic}: nothing was committed to the Iceberg table: {reason}")
        self.topic = topic


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergHead(Head):
    """The last load's manifest, and the table's current snapshot, which the next commit must find."""

    snapshot_id: int | None


@dataclass
class IcebergStore:
    """The table of one topic, below the root URL of a load. Its name is `pipeline.<topic>`."""

    root: str
    topic: str
    catalog_properties: Mapping[str, str]
    timeout_s: float = TIMEOUT_S

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog, opened at first use."""
        return open_catalog(self.root, self.catalog_properties, self.timeout_s)

    @property
    def location(self) -> str:
        """URL of the topic's folder, which is the table's location."""
        base = self.root if "://" in self.root else f"file://{self.root}"
        return f"{base.rstrip('/')}/{self.topic}"

    def read_head(self) -> IcebergHead:
        """See CommitStore. Raises IcebergError, SnapshotPropertyError."""
        return self.read()[1]

    def read(self) -> tuple[Table | None, IcebergHead]:
        """Return the table, None if there is none yet, and its last load. Raises as `read_head`."""
        try:
            table = self._load()
            head = self._head(table)
            if head.manifest is None:
                self._check_unknown(table)
        except NoSuchTableError:
            self._check_unknown(None)
            return None, IcebergHead(manifest=None, sha256=None, snapshot_id=None)
        except PipelineError:
            raise
        except Exception as error:
            raise IcebergError(self.topic, f"the table cannot be read: {error}") from error
        return table, head

    def commit(self, manifest: Manifest, head: Head, *, orphan_age_ms: int) -> Manifest:  # noqa: ARG002 - no rebase
        """See CommitStore."""
        check_follows(manifest, head.manifest, head.sha256)
        base = head.snapshot_id if isinstance(head, IcebergHead) else None
        try:
            table = self._table(is_first=head.manifest is None)
            if _snapshot_id(table) != base:
                raise CommitConflictError(self.topic, manifest.sequence, _run_of(table))
            transaction = self._staged(table, manifest, totals_by_window(table, head).after([manifest]))
        except PipelineError:
            raise
        except Exception as error:  # pyiceberg, its file formats and each catalog have errors of their own
            raise IcebergError(self.topic, f"{type(error).__name__}: {error}") from error
        requirements = (
            *transaction._requirements,
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": base}),
        )
        try:
            self.catalog.commit_table(table, requirements, transaction._updates)
        except Exception as error:
            self._settle(manifest, table, error)
        return manifest

    def listed_files(self) -> set[str]:
        """See CommitStore: the files of all snapshots, and all quarantine files, since commits expire."""
        try:
            table = self._load()
            paths = table.inspect.all_data_files().column("file_path").to_pylist() if table.metadata.snapshots else []
        except NoSuchTableError:
            self._check_unknown(None)
            return set()
        except PipelineError:
            raise
        except Exception as error:
            raise IcebergError(self.topic, f"the table cannot be read: {error}") from error
        listed = {str(path).removeprefix(f"{self.location}/") for path in paths}
        files, path = open_filesystem(self.root)
        layout = topic_layout(path, self.topic)
        aside = [info.path for folder in QUARANTINES for info in files.list_files(layout.absolute(folder))]
        return listed | {layout.relative(path) for path in aside}

    def after_commit(self, sequence: int, run_id: str) -> None:
        """Do nothing: snapshots expire and are compacted by the tools of Iceberg."""

    def _check_unknown(self, table: Table | None) -> None:
        """Raise IcebergError if the folder has metadata of commits of another table than the catalog's, or it has none.

        A load from the begin would double the table's records, or lose those that the topic has no more, and a
        clean-up would delete its files.
        """
        files, path = open_filesystem(self.root)
        layout = topic_layout(path, self.topic)
        names = [layout.relative(info.path) for info in files.list_files(layout.iceberg_metadata)]
        made = [name for name in names if (match := _METADATA.search(name)) is not None and int(match["number"])]
        if any(table is None or self._is_of_other(table, name) for name in made):
            reason = (
                f"the catalog knows no commit of {NAMESPACE}.{self.topic}, but {self.location}/metadata has some: "
                "the catalog is another one, or was lost. Register the newest metadata file, or remove the folder"
            )
            raise IcebergError(self.topic, reason)

    def _is_of_other(self, table: Table, name: str) -> bool:
        """Return True if a metadata file is of another table's load; a dead run may have left one of this table."""
        metadata = FromInputFile.table_metadata(table.io.new_input(f"{self.location}/{name}"))
        return metadata.table_uuid != table.metadata.table_uuid and MANIFEST in metadata.properties

    def _table(self, *, is_first: bool) -> Table:
        """Return the table; for the first load, create it without a snapshot if there is none."""
        try:
            table = self._load()
        except NoSuchTableError:
            self._check_unknown(None)
            if not is_first:
                raise
            with suppress(NamespaceAlreadyExistsError):
                self.catalog.create_namespace(NAMESPACE)
            table = self._at_location(
                self.catalog.create_table_if_not_exists(
                    (NAMESPACE, self.topic), _RECORD_SCHEMA, location=self.location, partition_spec=_BY_HOUR
                )
            )
        if is_first:
            self._check_unknown(table)
        return table

    def _load(self) -> Table:
        """Return the table. Raises NoSuchTableError, IcebergError, and the catalog's errors."""
        return self._at_location(self.catalog.load_table((NAMESPACE, self.topic)))

    def _at_location(self, table: Table) -> Table:
        """Raise IcebergError for a table elsewhere: of a topic of this name that another load brings to another root.

        Records of two topics would be mixed, and offsets of the one taken for those of the other.
        """
        if table.location().rstrip("/") != self.location:
            reason = (
                f"the catalog's table {NAMESPACE}.{self.topic} lies in {table.location()}, not in {self.location}. "
                "Load below that root, or use another catalog"
            )
            raise IcebergError(self.topic, reason)
        return table

    def _staged(self, table: Table, manifest: Manifest, totals: WindowTotals) -> Transaction:
        """Return a transaction that was not handed to the catalog (invariant A)."""
        paths = [f"{self.location}/{file.path}" for file in manifest.files if not file.quarantined]
        schemas = _distinct_schemas(paths)
        transaction = table.transaction()
        if table.schema().find_column_name(_PARTITION_ID) == PARTITION:  # of an earlier version
            with transaction.update_schema() as update:
                update.rename_column(PARTITION, ICEBERG_PARTITION)
        with transaction.update_schema() as update:
            for schema in schemas:
                update.union_by_name(schema)
        transaction.add_files(paths, snapshot_properties(manifest), check_duplicate_files=True)
        metadata = transaction.table_metadata
        for schema in schemas:
            _check_mapping(self.topic, metadata, schema)
        snapshot = metadata.current_snapshot()
        if snapshot is None or snapshot.sequence_number is None:
            raise IcebergError(self.topic, "no snapshot was made")
        properties = table_properties(manifest, snapshot.sequence_number, snapshot.snapshot_id)
        transaction.set_properties(properties | {TOTALS: totals.encode(manifest)})
        return transaction

    def _settle(self, manifest: Manifest, base: Table, cause: Exception) -> None:
        """Find out whether a commit that raised was carried out, by reading the table again."""
        try:
            table = self.catalog.load_table((NAMESPACE, self.topic))
        except Exception as error:
            raise CommitOutcomeUnknownError(self.topic, manifest.sequence, str(error)) from error
        if any(_summary(snapshot).get(RUN_ID) == manifest.run_id for snapshot in ancestors_of(table)):
            logger.info("commit_confirmed_by_reading_back", topic=self.topic, sequence=manifest.sequence)
            return
        if _snapshot_id(table) != _snapshot_id(base):
            raise CommitConflictError(self.topic, manifest.sequence, _run_of(table)) from cause
        # An SQL catalog answers in its transaction; the request of another one may still be under way. A refusal whose
        # cause is not to be seen may come of a request that was sent twice, and what was read of a cache.
        is_refused = isinstance(cause, CommitFailedException) and table.metadata_location != base.metadata_location
        if is_refused or isinstance(self.catalog, SqlCatalog):
            raise IcebergError(self.topic, str(cause)) from cause
        raise CommitOutcomeUnknownError(self.topic, manifest.sequence, str(cause)) from cause

    def _head(self, table: Table) -> IcebergHead:
        """Return the head by invariant C."""
        ancestors = list(ancestors_of(table))
        for snapshot in ancestors:
            if is_of_a_load(snapshot):
                manifest, sha256 = manifest_in(_summary(snapshot), f"snapshot {snapshot.snapshot_id}")
                return IcebergHead(manifest=manifest, sha256=sha256, snapshot_id=_snapshot_id(table))
        properties = table.properties
        if properties.get(MANIFEST) is None:
            return IcebergHead(manifest=None, sha256=None, snapshot_id=_snapshot_id(table))
        if not may_precede(properties, ancestors):
            raise SnapshotPropertyError(
                f"{self.topic}: the table was set back to a snapshot from before its last load, and the loads before "
                "have expired, so the offsets of its data are not known. Load the topic below another root"
            )
        manifest, sha256 = manifest_in(properties, f"table {self.topic}")
        return IcebergHead(manifest=manifest, sha256=sha256, snapshot_id=_snapshot_id(table))


def may_precede(properties: Mapping[str, str], ancestors: Sequence[Snapshot]) -> bool:
    """Return True if the snapshot of the table's properties can be an expired ancestor of those that are left."""
    if not ancestors:
        return False
    sequence = int(properties.get(ICEBERG_SEQUENCE, "0"))
    oldest = ancestors[-1]
    number = oldest.sequence_number or 0
    if number == sequence + 1 and oldest.parent_snapshot_id is not None:  # some expiries remove the parent's id
        return properties.get(ICEBERG_SNAPSHOT, str(oldest.parent_snapshot_id)) == str(oldest.parent_snapshot_id)
    return number > sequence


def _snapshot_id(table: Table) -> int | None:
    current = table.current_snapshot()
    return None if current is None else current.snapshot_id


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def ancestors_of(table: Table) -> Iterator[Snapshot]:
    """Yield the current snapshot and those it came from, up to the first that has expired."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    at = _snapshot_id(table)
    while at is not None and at in by_id:
        yield by_id[at]
        at = by_id[at].parent_snapshot_id


def is_of_a_load(snapshot: Snapshot) -> bool:
    """Return True if a load made the snapshot."""
    return _summary(snapshot).get(MANIFEST) is not None


def snapshot_commits(table: Table) -> list[Manifest]:
    """Return the commits among the current snapshot and its ancestors, oldest first. Raises SnapshotPropertyError."""
    made = [snapshot for snapshot in ancestors_of(table) if is_of_a_load(snapshot)]
    return [manifest_in(_summary(snapshot), f"snapshot {snapshot.snapshot_id}")[0] for snapshot in reversed(made)]


def totals_by_window(table: Table, head: Head) -> WindowTotals:
    """Return the counts by window of all commits up to `head`. Raises SnapshotPropertyError, WindowTotalsError."""
    if head.manifest is None:
        return WindowTotals()
    if table.properties.get(SHA256) == head.sha256 and TOTALS in table.properties:
        return WindowTotals.decode(table.properties[TOTALS])
    # A table that was set back, or that an earlier version loaded.
    commits = snapshot_commits(table)
    if len(commits) == head.manifest.sequence:
        return WindowTotals().after(commits)
    return WindowTotals(since_ms=head.manifest.created_ms)


def _run_of(table: Table) -> str:
    """Return the run that made the current snapshot."""
    current = table.current_snapshot()
    return OTHER_WRITER if current is None else _summary(current).get(RUN_ID, OTHER_WRITER)


def _distinct_schemas(urls: list[str]) -> "list[pa.Schema]":
    schemas: dict[Any, None] = {}
    for url in urls:
        files, path = open_filesystem(url)
        with files.open(path) as file:
            schemas[pq.read_schema(file)] = None
    return list(schemas)


def _check_mapping(topic: str, metadata: TableMetadata, columns: "pa.Schema") -> None:
    """Raise IcebergError unless readers find each column of a file (invariant D)."""
    try:
        mapped = pyarrow_to_schema(columns, metadata.name_mapping())
    except ValueError as error:
        raise IcebergError(topic, f"the table's name mapping lacks a column: {error}") from error
    table = metadata.schema()
    for name in mapped.column_names:
        if mapped.find_field(name).field_id != table.find_field(name).field_id:
            raise IcebergError(topic, f"the table's name mapping gives column {name} to another one")


_METADATA: Final = re.compile(r"/(?P<number>\d{5,})-[^/]*\.metadata\.json$")
"""Number 0 is of a table that was created, and perhaps not yet known to the catalog when its creator died."""
_PARTITION_ID: Final = 3
_HEADER: Final = IcebergStruct(
    NestedField(9, "key", StringType(), required=False), NestedField(10, "value", BinaryType(), required=False)
)
_RECORD_SCHEMA: Final = Schema(
    NestedField(1, KEY, BinaryType(), required=False),
    NestedField(2, OFFSET, LongType(), required=False),
    NestedField(_PARTITION_ID, ICEBERG_PARTITION, IntegerType(), required=False),
    NestedField(4, TIMESTAMP, TimestamptzType(), required=False),
    NestedField(5, HEADERS, ListType(8, _HEADER, element_required=False), required=False),
    NestedField(6, TOMBSTONE, BooleanType(), required=False),
)
_BY_HOUR: Final = PartitionSpec(PartitionField(4, 1000, HourTransform(), f"{TIMESTAMP}_hour"))
