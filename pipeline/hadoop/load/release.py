"""Brings records out of the quarantine into data files, after a fix: one commit of the kind `release`.

The records are decoded again as a load would decode them. Those that decode reach data files, the others a new
quarantine file; the old quarantine files are removed by the same commit. A release that is killed leaves its whole
commit or nothing, and another one finds what is still set aside. Batches are opened again: of one that opens, each
record is treated so; one that does not open goes to a new quarantine file as it is.

The counts of the commit are what the loads left out (`AsideBatch`): after a release of everything, the sums over all
commits are those of a load without bad records.
"""

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.hadoop.avro.avro_schema import HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, VALUE
from pipeline.hadoop.avro.datums import SchemaLookup
from pipeline.hadoop.avro.quarantine_reader import quarantined_records
from pipeline.hadoop.commit.checkpoints import read_state
from pipeline.hadoop.commit.layout import TaskAttempt, TopicLayout, topic_layout
from pipeline.hadoop.commit.manifest import VERSION, AsideBatch, DataFile, Operation, WindowKey
from pipeline.hadoop.commit.manifest_store import ManifestStore
from pipeline.hadoop.commit.publication import CommitOutcomeUnknownError, Head
from pipeline.hadoop.commit.rebase import commit_rebasing
from pipeline.hadoop.commit.runs import clean_up_dead_runs, clean_up_own_run, end_run, mark_run
from pipeline.hadoop.files.doors import FileSystem
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.load.quarantined_batches import UNLISTED, batch_rows
from pipeline.hadoop.load.task import TaskWriter
from pipeline.hadoop.load.task_spec import TaskSpec
from pipeline.hadoop.ranges.rows import FIRST_PIECE, arrow_schema, row_schema
from pipeline.model import Clock
from pipeline.records.memory import MIN_OPENED_BYTES
from pipeline.records.tally import NOTHING, Counts

logger = get_logger(__name__)

RELEASE_AGE_MS: Final = 24 * 3_600_000
"""Time that a release may take: see `orphan.age.ms` of a load."""
PORTION: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseResult:
    """Numbers of records that were brought in, and that are still set aside by reason. Commit None: nothing changed.

    `unopened` is the number of batches among them that cannot be opened.
    """

    commit: int | None
    released: int
    kept: Mapping[str, int]
    unopened: int = 0


def is_of_records(file: DataFile) -> bool:
    """True for a quarantine file of records; others hold batches that could not be opened."""
    return file.quarantined and not file.path.startswith("quarantine/batch-")


def release(
    root: str,
    topic: str,
    schemas: SchemaLookup | None,
    *,
    clock: Clock,
    run_id: str | None = None,
    max_opened_bytes: int = MIN_OPENED_BYTES,
) -> ReleaseResult:
    """Decode the records in the quarantine again, and commit those that are good. Loads may go on meanwhile.

    `schemas` is None for values of plain bytes. `max_opened_bytes` bounds a decompressed batch.
    Raises CommitConflictError if another run removed the same files, QuarantineFileError, ManifestError,
    StorageError, and as `schemas` if the registry does not answer, with nothing committed; CommitOutcomeUnknownError.
    """
    run_id = run_id or secrets.token_hex(8)
    files, path = open_filesystem(root)
    layout = topic_layout(path, topic)
    store = ManifestStore(files, layout)
    clean_up_dead_runs(files, layout, run_id, store)
    state = read_state(files, layout)
    aside = state.data_files(quarantined=True)
    last = state.last
    if last is None or not aside:
        return ReleaseResult(commit=None, released=0, kept={})
    mark_run(files, layout, run_id, head=last.sequence, orphan_age_ms=RELEASE_AGE_MS)
    spec = TaskSpec(
        root=root,
        topic=topic,
        run_id=run_id,
        format=last.format,
        codec="snappy",
        window_ms=last.window_ms,
        quarantine=True,
        schemas=schemas,
        path_format=last.path_format,
        table_schemas=last.schemas,
    )
    try:
        written, kept, unopened = _write(files, layout, spec, aside, max_opened_bytes)
        released = sum(file.records for file in written if not file.quarantined)
        if not released:
            _end_quietly(files, layout, run_id, store, has_files=True)
            return ReleaseResult(commit=None, released=0, kept=kept, unopened=unopened)
        manifest = replace(
            last,
            sequence=last.sequence + 1,
            run_id=run_id,
            created_ms=clock(),
            operation=Operation.RELEASE,
            ranges=(),
            skipped=(),
            files=tuple(sorted(written)),
            removed=tuple(file.path for file in aside),
            counts=released_counts(aside, written),
            previous_sha256=state.sha256,
            version=VERSION,
        )
        head = Head(manifest=last, sha256=state.sha256)
        manifest = commit_rebasing(files, layout, manifest, head, orphan_age_ms=RELEASE_AGE_MS)
    except CommitOutcomeUnknownError:
        raise
    except Exception:
        _end_quietly(files, layout, run_id, store, has_files=True)
        raise
    store.after_commit(manifest.sequence, run_id)
    _end_quietly(files, layout, run_id, store, has_files=False)
    return ReleaseResult(commit=manifest.sequence, released=released, kept=kept, unopened=unopened)


def _end_quietly(files: FileSystem, layout: TopicLayout, run_id: str, store: ManifestStore, *, has_files: bool) -> None:
    """End the run after its outcome is certain. Failures are logged, so that the caller still learns the outcome."""
    try:
        if has_files:
            clean_up_own_run(files, layout, run_id, store)
        end_run(files, layout, run_id)
    except PipelineError as error:
        logger.warning("release_run_not_ended", topic_root=layout.topic_root, reason=str(error))


def released_counts(before: Iterable[DataFile], after: Iterable[DataFile]) -> dict[WindowKey, Counts]:
    """Return what counts more once the live quarantine files are `after` in place of `before`. Pure."""
    was, now = _aside_by_batch(before), _aside_by_batch(after)
    sums: dict[WindowKey, Counts] = {}
    for (partition, _), (batch, aside) in was.items():
        _, left = now.get((partition, batch.base_offset), (batch, 0))
        old, new = batch.counts_without(aside), batch.counts_without(left)
        if old != new:
            key = (partition, batch.window_start_ms)
            brought = replace(new, records=new.records - old.records)
            if old != NOTHING:
                brought = Counts(brought.records, 0, 0, 0)
            sums[key] = sums.get(key, NOTHING) + brought
    return sums


def _aside_by_batch(files: Iterable[DataFile]) -> dict[tuple[int, int], tuple[AsideBatch, int]]:
    """Return by partition and base offset a batch, and the number of its records in all of the files."""
    found: dict[tuple[int, int], tuple[AsideBatch, int]] = {}
    for file in files:
        for batch in file.batches:
            _, aside = found.get((file.partition, batch.base_offset), (batch, 0))
            found[file.partition, batch.base_offset] = batch, aside + batch.aside
    return found


def _write(
    files: FileSystem, layout: TopicLayout, spec: TaskSpec, aside: Iterable[DataFile], max_opened_bytes: int
) -> tuple[list[DataFile], Mapping[str, int], int]:
    """Write the records of quarantine files to data files and new quarantine files.

    Also count records that are kept, by reason, and batches that cannot be opened.
    """
    written: list[DataFile] = []
    kept: Counter[str] = Counter()
    unopened = 0
    for number, file in enumerate(aside):
        writer = TaskWriter(spec, files, layout, TaskAttempt(run_id=spec.run_id, task=number, attempt=0))
        data = files.read(layout.absolute(file.path))
        for rows in _rows_of(file, data) if is_of_records(file) else batch_rows(file, data, max_opened_bytes):
            unopened += rows.column("key").to_pylist()[0] == FIRST_PIECE and rows.column("batch_fault").null_count == 0
            writer.add(rows)
        result = writer.finish(0)
        kept.update(result.aside_reasons)
        for made in result.files:
            listed = tuple(batch for batch in made.batches if batch.base_offset != UNLISTED)
            written.append(replace(made, batches=listed))
    return written, kept, unopened


def _rows_of(file: DataFile, data: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the records of a quarantine file as rows of the source, each with the columns of its batch."""
    schema = arrow_schema(row_schema(include_batches=True))
    batches = sorted(file.batches)
    portion: list[dict[str, Any]] = []
    at = -1
    for record in quarantined_records(data, file.path):
        while at + 1 < len(batches) and batches[at + 1].base_offset <= record[OFFSET]:
            at += 1
        portion.append(_row(record, batches[at] if at >= 0 else None))
        if len(portion) == PORTION:
            yield _batch_of(portion, schema)
            portion = []
    if portion:
        yield _batch_of(portion, schema)


def _batch_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _row(record: Mapping[str, Any], batch: AsideBatch | None) -> dict[str, Any]:
    return {
        "key": record[KEY],
        "value": record[VALUE],
        "partition": record[PARTITION],
        "offset": record[OFFSET],
        "timestamp_ms": record[TIMESTAMP],
        "headers": record[HEADERS],
        "batch_base_offset": UNLISTED if batch is None else batch.base_offset,
        "batch_crc": 0 if batch is None else batch.crc,
        "batch_bytes": 0 if batch is None else batch.bytes,
        "batch_records": 0 if batch is None else batch.records,
        "batch_timestamp": 0 if batch is None else batch.window_start_ms,
    }
