"""Checkpoints of a topic's table, so that nobody reads all of its manifests: `_checkpoints/<sequence>.parquet`.

A checkpoint is one Parquet file. Each row has a `file` (a live file) or a `count` (counts of a window); the file's
metadata holds the manifest of that commit as it is (`manifest`). Pages carry checksums, so that a damaged checkpoint is
noticed; an older one, or all manifests, take its place.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.hadoop.commit.column_files import ColumnFiles, columns_of, file_type
from pipeline.hadoop.commit.layout import TopicLayout, checkpoint_sequences, manifest_sequences, topic_layout
from pipeline.hadoop.commit.manifest import (
    Manifest,
    ManifestError,
    WindowKey,
    check_follows,
    sha256_of,
)
from pipeline.hadoop.commit.table_state import TableState, recent_counts, with_commits
from pipeline.hadoop.files.doors import FileSystem, PathExistsError, PathNotFoundError
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.records.content_sums import ContentSums
from pipeline.records.tally import Counts

logger = get_logger(__name__)

CHECKPOINT_INTERVAL: Final = 100
"""Number of commits between two checkpoints."""
_MANIFEST: Final = b"manifest"
_COUNTED: Final = ("records", "bytes", "batches", "crc_sum")
_COUNT_FIELDS: Final = ("partition", "window_start_ms", *_COUNTED)
_SUM_FIELDS: Final = ("partition", "window_start_ms", *ContentSums._fields)


class IcebergTableError(PipelineError):
    """A topic's folder holds an Iceberg table, which has no manifests."""

    def __init__(self, topic_root: str) -> None:
        super().__init__(
            f"{topic_root} holds an Iceberg table: read and maintain it through its catalog (docs/load/iceberg.md)"
        )
        self.topic_root = topic_root


def refuse_iceberg(files: FileSystem, layout: TopicLayout) -> None:
    """Raise IcebergTableError if the topic was loaded with table=iceberg. Raises StorageError too."""
    if holds_iceberg(files, layout):
        raise IcebergTableError(layout.topic_root)


def holds_iceberg(files: FileSystem, layout: TopicLayout) -> bool:
    """Return True if the topic was loaded with table=iceberg. Raises StorageError."""
    return bool(files.list_files(layout.iceberg_metadata))


def table_of(root: str, topic: str) -> TableState:
    """Return the state of a topic below the root URL of a load. Raises ManifestError, StorageError."""
    files, path = open_filesystem(root)
    return read_state(files, topic_layout(path, topic))


def read_state(files: FileSystem, layout: TopicLayout, *, up_to: int | None = None) -> TableState:
    """Return the state after commit `up_to`, or after the last one.

    Raises ManifestError if manifests are damaged, missing or expired; IcebergTableError; StorageError.
    """
    end = max(manifests_of(files, layout), default=0) if up_to is None else up_to
    if end == 0:
        refuse_iceberg(files, layout)
    state = _newest_checkpoint(files, layout, end)
    return with_commits(state, (read_manifest(files, layout, number) for number in range(state.sequence + 1, end + 1)))


def read_manifests(root: str, topic: str) -> list[Manifest]:
    """Return the manifests of a topic below the root URL of a load, oldest first. Raises as `read_chain`."""
    files, path = open_filesystem(root)
    return read_chain(files, topic_layout(path, topic))


def read_last_manifests(root: str, topic: str, state: TableState, count: int) -> list[Manifest]:
    """Return at most `count` manifests up to that of `state`, oldest first; fewer if earlier ones have expired."""
    files, path = open_filesystem(root)
    layout = topic_layout(path, topic)
    manifests: list[Manifest] = []
    for sequence in range(state.sequence, max(0, state.sequence - count), -1):
        try:
            manifests.append(read_manifest(files, layout, sequence)[0])
        except ManifestError:
            if not manifests:
                raise
            break
    return manifests[::-1]


def read_chain(files: FileSystem, layout: TopicLayout) -> list[Manifest]:
    """Return the manifests that have not expired, on an open file system. `read_state` is for all other questions.

    Raises ManifestError if the chain of manifests is broken.
    """
    return list(read_history(files, layout)[1])


def read_history(files: FileSystem, layout: TopicLayout) -> tuple[TableState, Iterator[Manifest]]:
    """Return the oldest state that can be read, and an iterator that reads the manifests after it.

    Manifests before the oldest checkpoint are left out if the first ones are gone: their expiry is under way. Those
    before a hole are left out too, if there is a checkpoint: a run that was fenced off may have left one there.
    Function and iterator raise as `read_chain`.
    """
    sequences = manifests_of(files, layout)
    if not sequences:
        return TableState(), iter(())
    present = set(sequences)
    first = sequences[-1]
    while first - 1 in present:
        first -= 1
    if first != sequences[0]:
        logger.warning("load_manifest_missing", path=layout.manifest(first - 1))
    state = TableState()
    if first > 1:
        checkpoints = checkpoint_sequences([info.path for info in files.list_files(layout.checkpoints)])
        usable = (number for number in checkpoints if first - 1 <= number <= sequences[-1])
        # A checkpoint that merely cannot be read now is not taken for a damaged one: what lies before it would go.
        wholes = (_whole_checkpoint(files, layout, number, passed_over=ManifestError) for number in usable)
        found = next((whole for whole in wholes if whole is not None), None)
        if found is None:
            raise ManifestError(layout.manifest(first - 1), "is missing, or has expired without a checkpoint")
        state = found
    return state, read_following(files, layout, state, sequences[-1])


def read_following(files: FileSystem, layout: TopicLayout, state: TableState, end: int) -> Iterator[Manifest]:
    """Read and yield the manifests after a state, up to number `end`. Raises ManifestError, StorageError."""
    last, sha256 = state.last, state.sha256
    for sequence in range(state.sequence + 1, end + 1):
        manifest, checksum = read_manifest(files, layout, sequence)
        check_follows(manifest, last, sha256)
        yield manifest
        last, sha256 = manifest, checksum


def reachable_files(base: TableState, manifests: Iterable[Manifest]) -> set[str]:
    """Return the paths that a state or a manifest after it lists: those of the table, now or at an earlier commit."""
    return {*base.files, *(file.path for manifest in manifests for file in manifest.files)}


def manifests_of(files: FileSystem, layout: TopicLayout) -> list[int]:
    """Return the numbers of the manifests on the file system, ascending.

    Raises ManifestError if there are none but checkpoints: such a table is not empty, and no load may begin it anew.
    """
    found = manifest_sequences([info.path for info in files.list_files(layout.commits)])
    saved = [] if found else checkpoint_sequences([info.path for info in files.list_files(layout.checkpoints)])
    if saved:
        reason = f"is missing, and so are all others, though its checkpoint is there: restore {layout.commits}"
        raise ManifestError(layout.manifest(saved[-1]), reason)
    return found


def readable_commits(files: FileSystem, layout: TopicLayout) -> list[int]:
    """Return the numbers of commits whose state may be asked for, ascending: those of manifests and of checkpoints.

    The oldest commit that a clean-up keeps has a checkpoint alone.
    """
    saved = checkpoint_sequences([info.path for info in files.list_files(layout.checkpoints)])
    return sorted({*manifests_of(files, layout), *saved})


def read_manifest(files: FileSystem, layout: TopicLayout, sequence: int) -> tuple[Manifest, str]:
    """Return a manifest and its checksum. Raises ManifestError if it is damaged, missing or expired; StorageError."""
    path = layout.manifest(sequence)
    try:
        encoded = files.read(path)
    except PathNotFoundError as error:
        raise ManifestError(path, "is missing, or has expired") from error
    return Manifest.decode(encoded, path), sha256_of(encoded)


def write_checkpoint(files: FileSystem, layout: TopicLayout, sequence: int, run_id: str) -> None:
    """Write the checkpoint of a commit, unless there is one. Raises as `read_state`.

    A crash leaves a file of a temporary name, which goes with the other files of its run.
    """
    encoded = encode_checkpoint(read_state(files, layout, up_to=sequence))
    temporary = layout.temporary_checkpoint(sequence, run_id)
    with suppress(PathExistsError):
        files.publish_exclusive(layout.checkpoint(sequence), encoded, temporary=temporary)


def read_checkpoint(files: FileSystem, layout: TopicLayout, sequence: int) -> TableState:
    """Return the state in a checkpoint. Raises ManifestError if it is damaged, StorageError."""
    path = layout.checkpoint(sequence)
    state = decode_checkpoint(files.read(path), path)
    if state.sequence != sequence:
        raise ManifestError(path, f"holds commit {state.sequence}")
    return state


def checkpoint_if_due(files: FileSystem, layout: TopicLayout, sequence: int, run_id: str) -> None:
    """Write a checkpoint after each CHECKPOINT_INTERVAL commits. A failure is logged: the next ones make up for it."""
    if sequence % CHECKPOINT_INTERVAL:
        return
    try:
        write_checkpoint(files, layout, sequence, run_id)
    except PipelineError as error:
        logger.warning("load_checkpoint_failed", topic_root=layout.topic_root, sequence=sequence, reason=str(error))


def encode_checkpoint(state: TableState) -> bytes:
    """Return the content of the checkpoint of a state."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert state.last is not None
    files = columns_of(state.files)
    recent = recent_counts(state.counts, state.last)
    counts = _count_columns(recent)
    sums = _sum_columns({key: value for key, value in state.sums.items() if key in recent})
    table = pa.table(
        {
            "file": pa.concat_arrays([files, pa.nulls(len(counts) + len(sums), files.type)]),
            "count": pa.concat_arrays([pa.nulls(len(files), counts.type), counts, pa.nulls(len(sums), counts.type)]),
            "sum": pa.concat_arrays([pa.nulls(len(files) + len(counts), sums.type), sums]),
        }
    ).replace_schema_metadata({_MANIFEST: state.last.encode()})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def decode_checkpoint(data: bytes, name: str) -> TableState:
    """Return the state in `data`. Raises ManifestError that names `name`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        encoded: bytes = table.schema.metadata[_MANIFEST]
        files = table.column("file").drop_null().combine_chunks().cast(file_type())
        counts = _counts_of(table.column("count").drop_null().combine_chunks())
        sums = _sums_of(table.column("sum").drop_null().combine_chunks()) if "sum" in table.column_names else {}
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise ManifestError(name, f"is damaged: {error}") from error
    last = Manifest.decode(encoded, name)
    return TableState(last=last, sha256=sha256_of(encoded), files=ColumnFiles(files), counts=counts, sums=sums)


def _newest_checkpoint(files: FileSystem, layout: TopicLayout, end: int) -> TableState:
    for sequence in reversed(checkpoint_sequences([info.path for info in files.list_files(layout.checkpoints)])):
        state = _whole_checkpoint(files, layout, sequence) if sequence <= end else None
        if state is not None:
            return state
    return TableState()


def _whole_checkpoint(
    files: FileSystem, layout: TopicLayout, sequence: int, *, passed_over: type[PipelineError] = PipelineError
) -> TableState | None:
    try:
        return read_checkpoint(files, layout, sequence)
    except passed_over as error:
        logger.warning("load_checkpoint_unusable", path=layout.checkpoint(sequence), reason=str(error))
        return None


def _counts_of(columns: Any) -> dict[WindowKey, Counts]:
    partitions, starts, *counted = (columns.field(name).to_pylist() for name in _COUNT_FIELDS)
    return dict(zip(zip(partitions, starts, strict=True), map(Counts, *counted), strict=True))


def _sums_of(columns: Any) -> dict[WindowKey, ContentSums]:
    partitions, starts, *summed = (columns.field(name).to_pylist() for name in _SUM_FIELDS)
    return dict(zip(zip(partitions, starts, strict=True), map(ContentSums, *summed), strict=True))


def _sum_columns(sums: Mapping[WindowKey, ContentSums]) -> Any:
    import pyarrow as pa

    ordered = sorted(sums.items())
    values = zip(*((*key, *value) for key, value in ordered), strict=True) if ordered else [[]] * len(_SUM_FIELDS)
    types = [pa.int32(), pa.int64(), pa.int64(), pa.uint64(), pa.uint64(), pa.int64(), pa.int64()]
    columns = [pa.array(each, kind) for each, kind in zip(values, types, strict=True)]
    return pa.StructArray.from_arrays(columns, names=_SUM_FIELDS)


def _count_columns(counts: Mapping[WindowKey, Counts]) -> Any:
    import pyarrow as pa

    ordered = sorted(counts.items())
    keys = ([key[at] for key, _ in ordered] for at in range(2))
    values = ([getattr(value, name) for _, value in ordered] for name in _COUNTED)
    # A crc_sum fills 64 bits.
    types = [pa.int32(), *[pa.int64()] * 4, pa.uint64()]
    columns = [pa.array(each, kind) for each, kind in zip((*keys, *values), types, strict=True)]
    return pa.StructArray.from_arrays(columns, names=_COUNT_FIELDS)
