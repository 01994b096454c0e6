"""Checkpoints of a topic's table, so that nobody reads all of its manifests: `_checkpoints/<sequence>.parquet`.

A checkpoint is one Parquet file. Each row has a `file` (a live file) or a `count` (counts of a window); the file's
metadata holds the manifest of that commit as it is (`manifest`). Pages carry checksums, so that a damaged checkpoint is
noticed; an older one, or all manifests, take its place.
"""

import io
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

import structlog

from pipeline.errors import PipelineError
from pipeline.hadoop.commit.layout import TopicLayout, checkpoint_sequences, manifest_sequences, topic_layout
from pipeline.hadoop.commit.manifest import (
    AsideBatch,
    DataFile,
    Manifest,
    ManifestError,
    check_follows,
    sha256_of,
)
from pipeline.hadoop.commit.table_state import TableState, recent_counts, with_commits
from pipeline.hadoop.files.doors import FileSystem, PathExistsError, PathNotFoundError
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.records.tally import Counts

logger = structlog.get_logger()

CHECKPOINT_INTERVAL: Final = 100
"""Number of commits between two checkpoints."""
_MANIFEST: Final = b"manifest"
_COUNTED: Final = ("records", "bytes", "batches", "crc_sum")


class IcebergTableError(PipelineError):
    """A topic's folder holds an Iceberg table, which has no manifests."""

    def __init__(self, topic_root: str) -> None:
        super().__init__(
            f"{topic_root} holds an Iceberg table: read and maintain it through its catalog (docs/load/iceberg.md)"
        )
        self.topic_root = topic_root


def refuse_iceberg(files: FileSystem, layout: TopicLayout) -> None:
    """Raise IcebergTableError if the topic was loaded with table=iceberg. Raises StorageError too."""
    if files.list_files(layout.iceberg_metadata):
        raise IcebergTableError(layout.topic_root)


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
    return read_history(files, layout)[1]


def read_history(files: FileSystem, layout: TopicLayout) -> tuple[TableState, list[Manifest]]:
    """Return the oldest state that can be read, and the manifests after it. Raises as `read_chain`.

    Manifests before the oldest checkpoint are left out if the first ones are gone: their expiry is under way. Those
    before a hole are left out too, if there is a checkpoint: a run that was fenced off may have left one there.
    """
    sequences = manifests_of(files, layout)
    if not sequences:
        return TableState(), []
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
        found = next((whole for number in usable if (whole := _whole_checkpoint(files, layout, number))), None)
        if found is None:
            raise ManifestError(layout.manifest(first - 1), "is missing, or has expired without a checkpoint")
        state = found
    manifests: list[Manifest] = []
    last, sha256 = state.last, state.sha256
    for sequence in range(state.sequence + 1, sequences[-1] + 1):
        manifest, checksum = read_manifest(files, layout, sequence)
        check_follows(manifest, last, sha256)
        manifests.append(manifest)
        last, sha256 = manifest, checksum
    return state, manifests


def reachable_files(base: TableState, manifests: Iterable[Manifest]) -> set[str]:
    """Return the paths that a state or a manifest after it lists: those of the table, now or at an earlier commit."""
    return {*base.files, *(file.path for manifest in manifests for file in manifest.files)}


def manifests_of(files: FileSystem, layout: TopicLayout) -> list[int]:
    """Return the numbers of the manifests on the file system, ascending."""
    return manifest_sequences([info.path for info in files.list_files(layout.commits)])


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
    counts = recent_counts(state.counts, state.last)
    listed = [asdict(file) for file in state.files.values()]
    counted = [
        {"partition": partition, "window_start_ms": start, **{name: getattr(value, name) for name in _COUNTED}}
        for (partition, start), value in sorted(counts.items())
    ]
    table = pa.table(
        {
            "file": pa.array([*listed, *[None] * len(counted)], _file_type()),
            "count": pa.array([*[None] * len(listed), *counted], _count_type()),
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
        files = [_data_file(row) for row in table.column("file").drop_null().to_pylist()]
        counts = table.column("count").drop_null().to_pylist()
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise ManifestError(name, f"is damaged: {error}") from error
    return TableState(
        last=Manifest.decode(encoded, name),
        sha256=sha256_of(encoded),
        files={file.path: file for file in files},
        counts={
            (count["partition"], count["window_start_ms"]): Counts(*(count[field] for field in _COUNTED))
            for count in counts
        },
    )


def _newest_checkpoint(files: FileSystem, layout: TopicLayout, end: int) -> TableState:
    for sequence in reversed(checkpoint_sequences([info.path for info in files.list_files(layout.checkpoints)])):
        state = _whole_checkpoint(files, layout, sequence) if sequence <= end else None
        if state is not None:
            return state
    return TableState()


def _whole_checkpoint(files: FileSystem, layout: TopicLayout, sequence: int) -> TableState | None:
    try:
        return read_checkpoint(files, layout, sequence)
    except PipelineError as error:
        logger.warning("load_checkpoint_unusable", path=layout.checkpoint(sequence), reason=str(error))
        return None


def _data_file(row: dict[str, Any]) -> DataFile:
    return DataFile(**row | {"batches": tuple(AsideBatch(**batch) for batch in row["batches"])})


def _file_type() -> Any:
    import pyarrow as pa

    numbers = ("hour_ms", "records", "bytes", "first_offset", "last_offset", "crc32c", "schema_id")
    texts = [pa.field(name, pa.string()) for name in ("path", "record_type")]
    of_batch = ("base_offset", "window_start_ms", "records", "bytes", "crc", "aside")
    batches = pa.list_(pa.struct([pa.field(name, pa.int64()) for name in of_batch]))
    return pa.struct(
        [
            *texts,
            pa.field("partition", pa.int32()),
            *(pa.field(name, pa.int64()) for name in numbers),
            pa.field("batches", batches),
        ]
    )


def _count_type() -> Any:
    import pyarrow as pa

    numbers = [pa.field(name, pa.int64()) for name in ("window_start_ms", "records", "bytes", "batches")]
    # A crc_sum fills 64 bits.
    return pa.struct([pa.field("partition", pa.int32()), *numbers, pa.field("crc_sum", pa.uint64())])
