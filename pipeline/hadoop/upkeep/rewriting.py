"""Writes files of a table again from the topic, as a load would write them. In this process, without Spark.

Files whose offsets overlap (of several schemas) are written together. Given the settings of the load, the files have
the same bytes, unless a load had to flush early because rows of many files waited in memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client.cluster.config import ClientConfig, ConsumerConfig
from pipeline.errors import PipelineError
from pipeline.hadoop.avro.registry_lookup import RegistryLookup
from pipeline.hadoop.commit.layout import PathFormat, TaskAttempt, TopicLayout
from pipeline.hadoop.commit.manifest import DataFile, OffsetRange, TableSchema
from pipeline.hadoop.files.doors import FileSystem
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.task import TaskWriter
from pipeline.hadoop.load.task_spec import TaskSpec
from pipeline.hadoop.ranges.plan import BadBatch
from pipeline.hadoop.ranges.range_reader import RangeReader
from pipeline.hadoop.ranges.rows import arrow_schema, row_schema
from pipeline.hadoop.upkeep.quarantined_offsets import QuarantinedOffsets
from pipeline.records.tally import HOUR_MS

Rewritten = tuple[tuple[DataFile, ...], DataFile]
"""Files, and the one that has their rows now: nearly always one for one."""


class TopicChangedError(PipelineError):
    """The topic does not hold the records of committed files any more."""

    def __init__(self, topic: str, loaded: OffsetRange, reason: str) -> None:
        super().__init__(f"{topic} {loaded}: {reason}")
        self.topic = topic
        self.loaded = loaded
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCluster:
    """Files of a partition and an hour whose offsets overlap, and the offsets from their first to their last."""

    hour_ms: int
    loaded: OffsetRange
    files: tuple[DataFile, ...]

    @classmethod
    def all_of(cls, files: Iterable[DataFile]) -> list[Self]:
        """Return the clusters of data files, by partition, hour and offset."""
        clusters: list[list[DataFile]] = []
        end = 0
        place = None
        for file in sorted(files, key=_by_place):
            if (file.partition, file.hour_ms) != place or file.first_offset >= end:
                clusters.append([])
                end = 0
            place = (file.partition, file.hour_ms)
            clusters[-1].append(file)
            end = max(end, file.last_offset + 1)
        return [cls._of(cluster) for cluster in clusters]

    @classmethod
    def _of(cls, files: list[DataFile]) -> Self:
        first, end = files[0], max(file.last_offset for file in files) + 1
        assert first.hour_ms is not None
        loaded = OffsetRange(partition=first.partition, start=first.first_offset, end=end)
        return cls(hour_ms=first.hour_ms, loaded=loaded, files=tuple(files))


def rewrite(
    files: FileSystem,
    layout: TopicLayout,
    config: LoadConfig,
    cluster: FileCluster,
    attempt: TaskAttempt,
    *,
    path_format: PathFormat,
    aside: QuarantinedOffsets,
) -> list[Rewritten]:
    """Write the files of a cluster again below `layout`. Return what was written, with the files that it stands for.

    config: the settings of the load that wrote the files.
    aside: offsets that are in the quarantine, and so in no data file whatever the topic gives there.
    Raises DataLossError if the topic does not hold the offsets, TopicChangedError if it has other records there, the
    consumer's errors, StorageError.
    """
    registry = RegistryLookup(config.registry) if config.value_format == "avro" else None
    schemas = () if registry is None else _schemas_of(cluster, registry)
    as_written = config.model_copy(update={"format": cluster.files[0].path.rsplit(".", 1)[-1]})
    written = write_range(
        files,
        layout,
        as_written,
        cluster.loaded,
        schemas,
        attempt,
        path_format=path_format,
        hour_ms=cluster.hour_ms,
        aside=aside,
    )
    for file in written:
        if file.quarantined:
            files.delete(layout.absolute(file.path))
    again = sorted((file for file in written if not file.quarantined), key=_by_place)
    pairs = match_files(cluster.files, again)
    if pairs is None:
        found = f"{sum(file.records for file in again)} records in {len(again)} files"
        expected = f"{sum(file.records for file in cluster.files)} in {len(cluster.files)}"
        raise TopicChangedError(
            config.topic, cluster.loaded, f"the topic gives {found} there; {expected} are committed"
        )
    return pairs


def write_range(
    files: FileSystem,
    layout: TopicLayout,
    config: LoadConfig,
    loaded: OffsetRange,
    schemas: tuple[TableSchema, ...],
    attempt: TaskAttempt,
    *,
    path_format: PathFormat,
    hour_ms: int | None = None,
    aside: QuarantinedOffsets | None = None,
) -> list[DataFile]:
    """Write the topic's records of a range, or those of an hour among them, below `layout`, quarantine files included.

    aside: offsets to leave out.

    Raises as `rewrite`.
    """
    registry = RegistryLookup(config.registry) if config.value_format == "avro" else None
    spec = TaskSpec(
        root=config.root,
        topic=config.topic,
        run_id=attempt.run_id,
        format=config.format,
        codec=config.codec,
        window_ms=config.window_ms,
        quarantine=True,  # records that were set aside are in the topic, too
        schemas=registry,
        is_iceberg=config.table == "iceberg",
        path_format=path_format,
        table_schemas=schemas,
        versions=None if registry is None else registry.versions,
    )
    columns = arrow_schema(row_schema(include_batches=True))
    unused = {"topic", "timestamp", "timestampType"}
    reader = RangeReader(
        client=ClientConfig(
            bootstrap=config.bootstrap, client_id=f"pipeline-upkeep-{attempt.run_id}", security=config.security
        ),
        schema=pa.schema([field for field in columns if field.name not in unused]),
        include_batches=True,
        fail_on_data_loss=True,
        max_opened_bytes=config.max_opened_bytes,
        on_bad_batch=BadBatch.ROW,
        consumer=ConsumerConfig(isolation_level=config.isolation),
    )
    writer = TaskWriter(spec, files, layout, attempt)
    for batch in reader.read(config.topic, loaded):
        kept = np.ones(len(batch), dtype=np.bool_)
        if hour_ms is not None:
            timestamps = pc.fill_null(batch.column("timestamp_ms"), hour_ms - 1).to_numpy()
            kept &= np.floor_divide(timestamps, HOUR_MS) * HOUR_MS == hour_ms
        if aside is not None:
            kept &= ~aside.holds(loaded.partition, batch.column("offset").to_numpy())
        writer.add(batch.filter(pa.array(kept)))
    return list(writer.finish(0).files)


def match_files(files: Sequence[DataFile], again: Sequence[DataFile]) -> list[Rewritten] | None:
    """Return with each file of `again` those that had its rows; None if their numbers of records or offsets differ.

    Several files of one kind whose offsets overlap, as a release of the quarantine leaves them, are written as one.
    """
    by_kind: dict[tuple[str | None, int | None], list[DataFile]] = {}
    for file in sorted(files, key=_by_place):
        by_kind.setdefault((file.record_type, file.schema_id), []).append(file)
    one_by_one = [(file,) for file in sorted(files, key=_by_place)]
    for groups in (one_by_one, sorted(map(tuple, by_kind.values()), key=lambda group: _by_place(group[0]))):
        if [_extent(group) for group in groups] == [_extent((file,)) for file in again]:
            return list(zip(groups, again, strict=True))
    return None


def _schemas_of(cluster: FileCluster, registry: RegistryLookup) -> tuple[TableSchema, ...]:
    """Return the schemas that the columns of the files have, whatever the subject's latest version is by now."""
    found = {(file.record_type, file.schema_id) for file in cluster.files if file.path.endswith(".parquet")}
    return tuple(
        TableSchema(record_type=record_type, subject=None, version=None, schema_id=number, text=registry(number))
        for record_type, number in sorted(found, key=str)
        if number is not None
    )


def _by_place(file: DataFile) -> tuple[int, int, int, int]:
    return file.partition, file.hour_ms or 0, file.first_offset, file.last_offset


def _extent(files: Sequence[DataFile]) -> tuple[int, int, int]:
    last = max(file.last_offset for file in files)
    return files[0].first_offset, last, sum(file.records for file in files)
