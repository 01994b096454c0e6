"""Reads the files of a table back and compares them with its manifests, and with the records that the topic holds.

Memory holds one file, and the offsets of files whose offsets overlap.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.errors import PipelineError
from pipeline.hadoop.avro.avro_schema import OFFSET, PARTITION
from pipeline.hadoop.avro.container_blocks import open_block, read_container
from pipeline.hadoop.avro.container_reader import ContainerReader
from pipeline.hadoop.commit.checkpoints import read_history
from pipeline.hadoop.commit.layout import TaskAttempt, topic_layout
from pipeline.hadoop.commit.manifest import DataFile, Manifest, Operation, add_counts
from pipeline.hadoop.commit.table_state import TableState, recent_counts
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.upkeep.quarantined_offsets import QuarantinedOffsets
from pipeline.hadoop.upkeep.rewriting import FileCluster, TopicChangedError, rewrite
from pipeline.hadoop.upkeep.table import DamagedFileError, Table

Progress = Callable[[int], object]
"""Called with the number of bytes or records that were compared since the last call."""


class DoubledRecords(NamedTuple):
    """Records of a partition and hour that a table holds once more than they were loaded."""

    partition: int
    hour_ms: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileDifference:
    """Deviation of a file from its commit. `path` is a file, or a range of offsets.

    `doubled`: what the file holds that is in the table already, if that is all that is wrong with the file.
    """

    path: str
    reason: str
    doubled: tuple[DoubledRecords, ...] = ()


@dataclass(slots=True)
class _SeenOffsets:
    """Offsets of the files of a partition, which come in the order of their first offsets."""

    partition: int = -1
    end: int = -1
    seen: list[tuple[str, NDArray[np.int64]]] = field(default_factory=list)

    def add(self, file: DataFile, offsets: NDArray[np.int64]) -> list[FileDifference]:
        """Return a difference for each file that shares an offset with this one."""
        if file.partition != self.partition or file.first_offset >= self.end:
            self.partition, self.end, self.seen = file.partition, -1, []
        doubled = []
        for path, others in self.seen:
            both = np.intersect1d(offsets, others)
            if len(both):
                reason = f"holds {len(both)} offsets that are in {path} too, the first is {both[0]}"
                hour = () if file.hour_ms is None else (DoubledRecords(file.partition, file.hour_ms, len(both)),)
                doubled.append(FileDifference(path=file.path, reason=reason, doubled=hour))
        self.seen.append((file.path, offsets))
        self.end = max(self.end, file.last_offset + 1)
        return doubled


def held_otherwise(differences: Sequence[FileDifference]) -> tuple[set[str], list[DoubledRecords]]:
    """Return the paths of differences that are more than doubled records, and the doubled records of the others."""
    damaged = {each.path for each in differences if not each.doubled}
    return damaged, [one for each in differences if each.path not in damaged for one in each.doubled]


def verify_files(table: Table, state: TableState, advance: Progress) -> list[FileDifference]:
    """Compare each live file with its manifest: bytes, CRC-32C, records and offsets; each offset is in one file.

    Also compare the records of each commit with its counts, or with the files that it takes the place of, and the
    newest checkpoint with the manifests.

    Raises ManifestError if the manifests do not follow one another; StorageError.
    """
    base, following = read_history(table.files, table.layout)
    manifests = list(following)
    differences = [*_outside_ranges(state, manifests), *_unbalanced(state, base, manifests)]
    seen = _SeenOffsets()
    order = sorted(state.files.values(), key=lambda file: (file.quarantined, file.partition, file.first_offset))
    for file in order:
        try:
            data = table.read(file)
            if not file.quarantined:
                offsets = offsets_in(file, data)
                differences += seen.add(file, offsets)
        except DamagedFileError as error:
            differences.append(FileDifference(path=file.path, reason=error.reason))
        advance(file.bytes)
    return differences


def verify_source(
    table: Table, config: LoadConfig, state: TableState, log_start_offsets: Mapping[int, int], advance: Progress
) -> tuple[list[FileDifference], int]:
    """Compare the rows of files with the records that the topic holds, value by value.

    Return differences, and the number of records that could not be compared since the topic does not hold them.
    config: the settings of the load that wrote the files.
    """
    differences: list[FileDifference] = []
    gone = 0
    aside = QuarantinedOffsets.of(table, state.data_files(quarantined=True))
    for number, cluster in enumerate(FileCluster.all_of(state.data_files())):
        records = sum(file.records for file in cluster.files)
        if cluster.loaded.start < log_start_offsets.get(cluster.loaded.partition, cluster.loaded.end):
            gone += records
        else:
            differences += _compare(table, config, cluster, number, aside)
        advance(records)
    return differences, gone


def _compare(
    table: Table, config: LoadConfig, cluster: FileCluster, number: int, aside: QuarantinedOffsets
) -> list[FileDifference]:
    differences = []
    with tempfile.TemporaryDirectory(prefix="pipeline-verify-") as directory:
        files, layout = LocalFileSystem(), topic_layout(directory, table.topic)
        attempt = TaskAttempt(run_id="verify", task=number, attempt=0)
        try:
            pairs = rewrite(files, layout, config, cluster, attempt, path_format="hourly", aside=aside)
        except TopicChangedError as error:
            return [FileDifference(path=str(cluster.loaded), reason=error.reason)]
        for old, again in pairs:
            if [(file.bytes, file.crc32c) for file in old] == [(again.bytes, again.crc32c)]:
                continue
            try:
                held = [table.read(file) for file in old]
            except DamagedFileError:
                continue  # `verify_files` names it
            written, path = files.read(layout.absolute(again.path)), old[0].path
            if len(held) == 1:
                is_same = _has_same_rows(held[0], written, path)
            else:
                is_same = _rows(held, path).equals(_rows([written], path))
            if not is_same:
                reason = "has other rows than the topic"
                differences += [FileDifference(path=file.path, reason=reason) for file in old]
    return differences


def _rows(held: Iterable[bytes], path: str) -> pa.Table:
    """Return the rows of files of one kind, by offset."""
    if path.endswith(".parquet"):
        return pa.concat_tables(pq.read_table(pa.BufferReader(data)) for data in held).sort_by(OFFSET)
    batches = (batch for data in held for batch in ContainerReader(path, BytesIO(data)).batches())
    return pa.Table.from_batches(batches).sort_by("offset")


def _has_same_rows(data: bytes, again: bytes, path: str) -> bool:
    """Compare files that differ in their bytes, as files do that were joined of others."""
    if path.endswith(".parquet"):
        left, right = (pq.read_table(pa.BufferReader(each)) for each in (data, again))
        return bool(left.equals(right))
    opened = []
    for each in (data, again):
        container = read_container(each, path)
        opened.append((container.schema, b"".join(open_block(container.codec, p, path) for _, p in container.blocks())))
    return opened[0] == opened[1]


def offsets_in(file: DataFile, data: bytes) -> NDArray[np.int64]:
    """Return the offsets of a file. Raises DamagedFileError unless they are as committed, ascending."""
    try:
        partitions, offsets = _parquet_offsets(data) if file.path.endswith(".parquet") else _avro_offsets(data, file)
    except (PipelineError, pa.ArrowException, OSError, ValueError, KeyError, EOFError, IndexError) as error:
        raise DamagedFileError(file.path, f"cannot be read: {error}") from error
    if len(offsets) != file.records:
        raise DamagedFileError(file.path, f"has {len(offsets)} records; {file.records} were committed")
    if (partitions != file.partition).any():
        raise DamagedFileError(file.path, f"has records of other partitions than {file.partition}")
    if (np.diff(offsets) <= 0).any():
        raise DamagedFileError(file.path, "its offsets are not in ascending order")
    if (offsets[0], offsets[-1]) != (file.first_offset, file.last_offset):
        found, expected = f"{offsets[0]} to {offsets[-1]}", f"{file.first_offset} to {file.last_offset}"
        raise DamagedFileError(file.path, f"has the offsets {found}; {expected} were committed")
    return offsets


def _parquet_offsets(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    table = pq.read_table(pa.BufferReader(data), columns=[PARTITION, OFFSET])
    return table.column(PARTITION).to_numpy(), table.column(OFFSET).to_numpy()


def _avro_offsets(data: bytes, file: DataFile) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    batches = list(ContainerReader(file.path, BytesIO(data)).batches())
    columns = (np.concatenate([b.column(name).to_numpy() for b in batches]) for name in ("partition", "offset"))
    partitions, offsets = columns
    return partitions, offsets


def _outside_ranges(state: TableState, manifests: Iterable[Manifest]) -> list[FileDifference]:
    """Return files whose offsets are not in the ranges of the load that wrote them, or beyond all that was loaded."""
    found = [
        FileDifference(path=file.path, reason="has offsets beyond the last that was loaded")
        for file in state.files.values()
        if file.last_offset >= state.offsets.get(file.partition, 0)
    ]
    for manifest in manifests:
        if manifest.operation is not Operation.LOAD:
            continue
        ranges = {loaded.partition: loaded for loaded in manifest.ranges}
        for file in manifest.files:
            loaded = ranges.get(file.partition)
            if loaded is None or not loaded.start <= file.first_offset <= file.last_offset < loaded.end:
                reason = f"has offsets outside of the ranges of commit {manifest.sequence}"
                found.append(FileDifference(path=file.path, reason=reason))
    return found


def _unbalanced(state: TableState, base: TableState, manifests: Iterable[Manifest]) -> list[FileDifference]:
    """Return commits whose records are not those they count or replace, and files that a checkpoint has otherwise."""
    found = []
    live, counts, offsets = dict(base.files), [base.counts], base.offsets
    for manifest in manifests:
        if manifest.sequence > state.sequence:  # committed since the state was read
            break
        removed = [live.pop(path) for path in manifest.removed if path in live]
        live |= {file.path: file for file in manifest.files}
        counts.append(manifest.counts)
        reasons = _miscounted(manifest, offsets) if manifest.operation is Operation.LOAD else _lossy(manifest, removed)
        found += [FileDifference(path=f"_commits/{manifest.sequence:020d}.json", reason=reason) for reason in reasons]
        offsets = manifest.offsets
    if base.sequence > state.sequence:  # the manifests up to the state have expired since it was read
        return found
    other = {path for path in live.keys() | state.files.keys() if live.get(path) != state.files.get(path)}
    reason = "is not as the manifests say in the newest checkpoint"
    found += [FileDifference(path=path, reason=reason) for path in sorted(other)]
    sums, last = add_counts(counts), state.last
    if last is not None and recent_counts(state.counts, last) != recent_counts(sums, last):
        found.append(FileDifference(path="_checkpoints", reason="the newest has other counts than the manifests"))
    return found


def _miscounted(manifest: Manifest, before: Mapping[int, int]) -> Iterator[str]:
    """Yield partitions of a load whose counts are not those of its files.

    Where a load began anywhere, or after a gap, records of the batch that it began in are not counted.
    """
    gaps = {gap.partition for gap in manifest.skipped}
    for partition in sorted({loaded.partition for loaded in manifest.ranges}):
        counted = sum(count.records for (number, _), count in manifest.counts.items() if number == partition)
        # Version 1 counted records in quarantine, too.
        files = [file for file in manifest.files if file.partition == partition]
        held = sum(file.records for file in files if not file.quarantined or manifest.version == 1)
        may_have_more = partition in gaps or partition not in before or manifest.version == 1
        if counted > held or (counted < held and not may_have_more):
            whose = f"commit {manifest.sequence} counts {counted} records of partition {partition}"
            yield f"{whose}, and its files hold {held}"


def _lossy(manifest: Manifest, removed: Iterable[DataFile]) -> Iterator[str]:
    """Yield a rearrangement that has other records than the files that it removed."""
    added, before = manifest.files, list(removed)
    new, old = sum(file.records for file in added), sum(file.records for file in before)
    if new != (0 if manifest.operation is Operation.EXPIRE else old):
        yield f"commit {manifest.sequence} ({manifest.operation}) has {new} records in place of {old}"
