"""Reads the files of an Iceberg table back and compares them with the commits of loads, and with the topic's records.

Memory holds one file, and a byte for each loaded offset. Commits whose snapshots have expired name no ranges and no
counts any more: their rows are compared with nothing but the table's last offsets.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.table import Table

from pipeline.errors import PipelineError
from pipeline.hadoop.avro.avro_schema import ICEBERG_PARTITION, OFFSET, TIMESTAMP
from pipeline.hadoop.commit.layout import TaskAttempt, topic_layout
from pipeline.hadoop.commit.manifest import Manifest, ManifestError, OffsetRange, TableSchema, check_follows
from pipeline.hadoop.files.doors import PathNotFoundError
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.iceberg.history import IcebergHistory, TableFile
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.upkeep.rewriting import write_range
from pipeline.hadoop.upkeep.verification import DoubledRecords, FileDifference, Progress
from pipeline.records.tally import HOUR_MS

BLOCK: Final = 1 << 16
PIECE: Final = 200_000
"""Offsets that are compared with the topic at once."""


@dataclass(slots=True)
class _SeenOffsets:
    """Offsets of one partition, a byte each, in blocks."""

    blocks: dict[int, NDArray[np.bool_]] = field(default_factory=dict)

    def add(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Note offsets. Return for each one True if it was there before, or stands further in front."""
        order = np.argsort(offsets, kind="stable")
        ordered = offsets[order]
        again = np.concatenate([[False], ordered[1:] == ordered[:-1]])
        for number in np.unique(ordered >> 16).tolist():
            block = self.blocks.setdefault(number, np.zeros(BLOCK, bool))
            chosen = (ordered >> 16) == number
            places = ordered[chosen] & (BLOCK - 1)
            again[chosen] |= block[places]
            block[places] = True
        doubled = np.zeros(len(offsets), np.bool_)
        doubled[order] = again
        return doubled

    def count(self, start: int, end: int) -> int:
        """Return how many of the offsets [start, end) are there."""
        found = 0
        for number, block in self.blocks.items():
            first, last = max(start - number * BLOCK, 0), min(end - number * BLOCK, BLOCK)
            found += int(block[first:last].sum()) if first < last else 0
        return found

    def last(self) -> int:
        """Return the highest offset."""
        number = max(self.blocks)
        return number * BLOCK + int(np.flatnonzero(self.blocks[number])[-1])


def verify_table_files(history: IcebergHistory, advance: Progress) -> list[FileDifference]:
    """Compare each live file with what the table says of it, and the rows of each commit with its counts.

    Each offset is in one row, and below the offset that the next load begins with. Rows that another writer deleted
    are missing rows.
    """
    differences: list[FileDifference] = []
    seen: dict[int, _SeenOffsets] = {}
    for file in sorted(history.files(), key=lambda file: file.url):
        try:
            rows = _rows_of(history.table, file)
        except _DamagedError as error:
            differences.append(FileDifference(path=file.url, reason=str(error)))
            rows = None
        if rows is not None:
            differences += _doubled(file, rows, seen)
        advance(file.bytes)
    for partition, found in sorted(seen.items()):
        if found.last() >= history.state.offsets.get(partition, 0):
            reason = f"the table holds offset {found.last()}, beyond the last that was loaded"
            differences.append(FileDifference(path=f"partition {partition}", reason=reason))
    return [*differences, *_miscounted(history, seen), *_broken(history.commits)]


def _doubled(file: TableFile, rows: pa.Table, seen: dict[int, _SeenOffsets]) -> Iterator[FileDifference]:
    """Yield a difference for each partition of which a file has offsets that are in the table already; note them."""
    partitions, offsets = (rows.column(name).to_numpy() for name in (ICEBERG_PARTITION, OFFSET))
    hours = (
        rows.column(TIMESTAMP).cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).fill_null(0).to_numpy()
    )
    hours = hours - hours % HOUR_MS
    for partition in np.unique(partitions).tolist():
        mine = partitions == partition
        again = seen.setdefault(partition, _SeenOffsets()).add(offsets[mine])
        if again.any():
            first = offsets[mine][again].min()
            reason = f"holds offset {first} of partition {partition}, which is in the table more than once"
            counted = zip(*np.unique(hours[mine][again], return_counts=True), strict=True)
            doubled = tuple(DoubledRecords(partition, int(hour), int(records)) for hour, records in counted)
            yield FileDifference(path=file.url, reason=reason, doubled=doubled)


def verify_table_source(
    history: IcebergHistory, config: LoadConfig, log_start_offsets: Mapping[int, int], advance: Progress
) -> tuple[list[FileDifference], int]:
    """Compare the rows of each commit with the records that the topic holds, value by value.

    Return differences, and the number of rows that were compared.
    config: the settings of the load that wrote the files.
    """
    differences: list[FileDifference] = []
    compared = 0
    config = config.model_copy(update={"table": "iceberg", "format": "parquet"})
    for commit in history.commits:
        for loaded in commit.ranges:
            start = max(loaded.start, log_start_offsets.get(loaded.partition, loaded.end))
            for first in range(start, loaded.end, PIECE):
                end = min(first + PIECE, loaded.end)
                piece = OffsetRange(partition=loaded.partition, start=first, end=end)
                found = _table_rows(history.table, piece)
                reason = _difference(found, _topic_rows(history.table, config, commit.schemas, piece))
                if reason is not None:
                    differences.append(FileDifference(path=str(piece), reason=reason))
                compared += found.num_rows
                advance(found.num_rows)
    return differences, compared


class _DamagedError(PipelineError):
    pass


def _rows_of(table: Table, file: TableFile) -> pa.Table:
    """Return partition, offset and time of a file's rows, after all of it was read. Raises _DamagedError."""
    files, path = open_filesystem(file.url)
    try:
        data = files.read(path)
    except PathNotFoundError as error:
        raise _DamagedError("is missing") from error
    if len(data) != file.bytes:
        raise _DamagedError(f"has {len(data)} bytes; {file.bytes} were committed")
    try:
        with pq.ParquetFile(BytesIO(data), page_checksum_verification=True) as parquet:
            records = sum(batch.num_rows for batch in parquet.iter_batches())
        if records != file.records:
            raise _DamagedError(f"has {records} records; {file.records} were committed")
        return _live_rows(table, file)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise _DamagedError(f"cannot be read: {error}") from error


def _live_rows(table: Table, file: TableFile) -> pa.Table:
    """Return partition, offset and time of the rows of a file that were not deleted."""
    scan = table.scan(selected_fields=(ICEBERG_PARTITION, OFFSET, TIMESTAMP))
    tasks = [task for task in scan.plan_files() if task.file.file_path == file.url]
    reader = ArrowScan(table.metadata, table.io, scan.projection(), AlwaysTrue())
    return reader.to_table(tasks)


def _miscounted(history: IcebergHistory, seen: Mapping[int, _SeenOffsets]) -> Iterator[FileDifference]:
    """Yield commits whose ranges hold other numbers of rows than they count.

    Where a load began anywhere, or after a gap, records of the batch that it began in are not counted.
    """
    known = history.commits[0].sequence == 1 if history.commits else False
    before: Mapping[int, int] | None = {} if known else None
    for commit in history.commits:
        gaps = {gap.partition for gap in commit.skipped}
        for loaded in commit.ranges:
            counted = sum(count.records for (number, _), count in commit.counts.items() if number == loaded.partition)
            held = seen[loaded.partition].count(loaded.start, loaded.end) if loaded.partition in seen else 0
            may_have_more = loaded.partition in gaps or before is None or loaded.partition not in before
            if held < counted or (held > counted and not may_have_more):
                removed = f"; another writer removed rows in snapshot {history.removals[0]}" if history.removals else ""
                reason = f"commit {commit.sequence} counts {counted} records, and the table holds {held}{removed}"
                yield FileDifference(path=str(loaded), reason=reason)
        before = commit.offsets


def _broken(commits: Iterable[Manifest]) -> Iterator[FileDifference]:
    """Yield commits that do not follow the one before them."""
    for previous, commit in pairwise(commits):
        try:
            check_follows(commit, previous, commit.previous_sha256)
        except ManifestError as error:
            yield FileDifference(path=f"commit {commit.sequence}", reason=error.reason)


def _table_rows(table: Table, piece: OffsetRange) -> pa.Table:
    within = f"{ICEBERG_PARTITION} = {piece.partition} and {OFFSET} >= {piece.start} and {OFFSET} < {piece.end}"
    return table.scan(row_filter=within).to_arrow().sort_by(OFFSET)


def _topic_rows(table: Table, config: LoadConfig, schemas: tuple[TableSchema, ...], piece: OffsetRange) -> pa.Table:
    """Return the rows that a load of the piece would write, as rows of the table."""
    columns = schema_to_pyarrow(table.schema(), include_field_ids=False)
    parts = []
    with tempfile.TemporaryDirectory(prefix="pipeline-verify-") as directory:
        files, layout = LocalFileSystem(), topic_layout(directory, config.topic)
        attempt = TaskAttempt(run_id="verify", task=0, attempt=0)
        for file in write_range(files, layout, config, piece, schemas, attempt, path_format="hourly"):
            if not file.quarantined:
                rows = pq.read_table(BytesIO(files.read(layout.absolute(file.path))))
                parts.append(_as_columns(rows, columns))
    return pa.concat_tables([columns.empty_table(), *parts]).sort_by(OFFSET)


def _as_columns(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    arrays = [
        rows.column(column.name).cast(column.type)
        if column.name in rows.column_names
        else pa.nulls(rows.num_rows, column.type)
        for column in columns
    ]
    return pa.Table.from_arrays(arrays, schema=columns)


def _difference(found: pa.Table, expected: pa.Table) -> str | None:
    """Return what differs first; None without a difference. Values are compared as they are stored: NaN equals NaN."""
    offsets, wanted = (set(each.column(OFFSET).to_pylist()) for each in (found, expected))
    if offsets != wanted:
        few, many = sorted(wanted - offsets), sorted(offsets - wanted)
        texts = [f"{len(few)} rows are missing, the first is offset {few[0]}"] if few else []
        texts += [f"{len(many)} rows are not in the topic, the first is offset {many[0]}"] if many else []
        return "; ".join(texts)
    # Each row is compared with the topic's of its offset, also one of two rows of an offset.
    places = np.searchsorted(expected.column(OFFSET).to_numpy(), found.column(OFFSET).to_numpy())
    expected = expected.take(pa.array(places)).cast(found.schema)
    if found.equals(expected) or _stored(found) == _stored(expected):
        return None
    for row in range(found.num_rows):
        if _stored(found.slice(row, 1)) != _stored(expected.slice(row, 1)):
            return f"offset {found.column(OFFSET)[row].as_py()} has another row than the topic"
    return "has other rows than the topic"


def _stored(rows: pa.Table) -> bytes:
    sink = BytesIO()
    pq.write_table(rows.combine_chunks(), sink, compression="none")
    return sink.getvalue()
