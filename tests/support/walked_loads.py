"""Loads of random walks (`table_walk.py`): the driver's own code, with a source in memory and without Spark."""

import io
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import fastavro
import numpy as np
import pyarrow as pa

from pipeline.errors import PipelineError
from pipeline.hadoop.avro.avro_schema import SchemaError
from pipeline.hadoop.avro.quarantine_reader import quarantined_records
from pipeline.hadoop.commit.layout import PATH_FORMATS, PathFormat, TaskAttempt, TopicLayout, topic_layout
from pipeline.hadoop.commit.manifest import DataFile, ManifestError, OffsetRange
from pipeline.hadoop.commit.manifest_store import ManifestStore
from pipeline.hadoop.commit.publication import CommitOutcomeUnknownError, commit, read_head
from pipeline.hadoop.commit.runs import clean_up_own_run
from pipeline.hadoop.files.doors import FileSystem
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.job import PreparedLoad, open_load
from pipeline.hadoop.load.load_tasks import Spark
from pipeline.hadoop.load.task import TaskWriter
from pipeline.hadoop.load.task_spec import TaskSpec
from pipeline.hadoop.ranges.batch_counts import TaskResult
from pipeline.hadoop.ranges.plan import LoadPlan
from pipeline.hadoop.ranges.rows import end_of_range, to_rows
from pipeline.hadoop.upkeep.quarantined_offsets import QuarantinedOffsets
from pipeline.hadoop.upkeep.rewriting import FileCluster, Rewritten, TopicChangedError, match_files
from pipeline.records.columns import open_batches
from pipeline.records.tally import HOUR_MS, window_start
from tests.support.load_task import ROWS, batch

TOPIC = "clicks"
WINDOW_MS = 600_000
BEGIN_MS = 1_700_006_400_000
_SCHEMA = json.dumps({"type": "record", "name": "Click", "fields": [{"name": "page", "type": "string"}]})
_GOOD, _UNKNOWN, _BROKEN = b"\0\0\0\0\x01\x02a", b"\0\0\0\0\x02\x02b", b"no datum"


def _lookup(schema_id: int) -> str:
    if schema_id != 1:
        raise SchemaError(f"the registry has no schema {schema_id}")
    return _SCHEMA


@dataclass
class Source:
    """Batches of two partitions."""

    random: random.Random
    batches: dict[int, list[bytes]] = field(default_factory=lambda: {0: [], 1: []})
    ends: dict[int, list[int]] = field(default_factory=lambda: {0: [], 1: []})
    window_of: dict[tuple[int, int], int] = field(default_factory=dict)
    bad: set[tuple[int, int]] = field(default_factory=set)

    def grow(self, at_least: int = 0) -> None:
        """Append some batches. Batches of several hours, and records that cannot be decoded, are among them."""
        for partition in self.batches:
            for _ in range(max(at_least, self.random.randrange(3))):
                self._append(partition)

    def _append(self, partition: int) -> None:
        base = self.ends[partition][-1] if self.ends[partition] else 0
        count = self.random.randint(1, 4)
        time_ms = BEGIN_MS + self.random.randrange(3 * HOUR_MS)
        window = window_start(time_ms, WINDOW_MS)
        records: list[Any] = []
        for offset in range(base, base + count):
            value = self.random.choices([_GOOD, _UNKNOWN, _BROKEN, None], [8, 2, 1, 1])[0]
            if value in (_UNKNOWN, _BROKEN):
                self.bad.add((partition, offset))
            records.append((b"k", value, [], time_ms))
            time_ms += self.random.choice([0, 1000, HOUR_MS])
            self.window_of[partition, offset] = window
        self.batches[partition].append(bytes(batch(base, records)))
        self.ends[partition].append(base + count)

    def lookup(self, schema_id: int) -> str:
        """Return the schema that is registered from the begin."""
        return _lookup(schema_id)

    def lookup_later(self, schema_id: int) -> str:
        """Return any schema: all are registered."""
        return _SCHEMA

    def windows(self, partition: int, offsets: Iterable[int]) -> list[tuple[int, int]]:
        """Return partition and window of the batch of each offset."""
        return [(partition, self.window_of[partition, offset]) for offset in offsets]

    def offsets_of(self, data: bytes, file: DataFile) -> tuple[int, tuple[int, ...]]:
        """Return partition and offsets of a file."""
        records: Iterable[Any] = (
            quarantined_records(data, file.path) if file.quarantined else fastavro.reader(io.BytesIO(data))
        )
        return file.partition, tuple(record["_offset"] for record in records)

    def rows(self, loaded: OffsetRange) -> pa.RecordBatch:
        """Return the rows of a range of offsets."""
        chosen = [
            data
            for data, end in zip(self.batches[loaded.partition], self.ends[loaded.partition], strict=True)
            if end > loaded.start
        ]
        columns = open_batches(b"".join(chosen))
        return to_rows(columns.between(loaded.start, loaded.end), TOPIC, loaded.partition, ROWS)

    def plan(self, offsets: Mapping[int, int], share: float) -> tuple[OffsetRange, ...]:
        """Return ranges from the loaded offsets up to the end of some batch."""
        ranges = []
        for partition, ends in self.ends.items():
            start = offsets.get(partition, 0)
            later = [end for end in ends if end > start]
            if later:
                end = later[min(len(later) - 1, int(share * 2 * len(later)))]
                ranges.append(OffsetRange(partition=partition, start=start, end=end))
        return tuple(ranges)

    def config(self, root: str, orphan_age_ms: int, path_format: PathFormat = "hourly") -> LoadConfig:
        return LoadConfig.from_settings(
            {
                "bootstrap.servers": "127.0.0.1:1",
                "topic": TOPIC,
                "root": root,
                "format": "avro",
                "schema.registry.url": "http://127.0.0.1:1",
                "on.bad.record": "quarantine",
                "orphan.age.ms": orphan_age_ms,
                "path.format": path_format,
            }
        )

    def spec(self, root: str, run_id: str, lookup: Callable[[int], str], path_format: PathFormat) -> TaskSpec:
        return TaskSpec(
            root=root,
            topic=TOPIC,
            run_id=run_id,
            format="avro",
            codec="null",
            window_ms=WINDOW_MS,
            quarantine=True,
            schemas=lookup,
            path_format=path_format,
        )

    def write(
        self,
        root: str,
        files: FileSystem,
        run_id: str,
        task: int,
        ranges: Sequence[OffsetRange],
        path_format: PathFormat,
    ) -> TaskResult:
        layout = topic_layout(root, TOPIC)
        attempt = TaskAttempt(run_id=run_id, task=task, attempt=0)
        writer = TaskWriter(self.spec(root, run_id, self.lookup, path_format), files, layout, attempt)
        for loaded in ranges:
            rows = self.rows(loaded)
            writer.add(rows)
            header = self.batches[loaded.partition][self.ends[loaded.partition].index(loaded.end)]
            writer.add(end_of_range(TOPIC, loaded.partition, loaded.end, rows.num_rows, ROWS, header))
        return writer.finish(0)


class _Settings:
    def get(self, name: str, default: str) -> str:
        return default


class _Context:
    defaultParallelism = 2  # noqa: N815 - Spark's name

    def getConf(self) -> _Settings:
        return _Settings()


class _NoSpark:
    sparkContext: Any = _Context()  # noqa: N815 - Spark's name


NO_SPARK = _NoSpark()


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedLoad(PreparedLoad):
    """A load whose tasks run in this process."""

    source: Source

    def _run_tasks(self, spark: Spark, tasks: Sequence[tuple[OffsetRange, ...]]) -> list[TaskResult]:
        return [
            self.source.write(self.config.root, self.files, self.run_id, number, ranges, self.path_format)
            for number, ranges in enumerate(tasks)
        ]


def load_once(
    root: str, files: FileSystem, source: Source, run_id: str, share: float, clock: Callable[[], int], age_ms: int
) -> Any:
    """Load as `run_load` does, into folders of a format that the run's name chooses."""
    path_format = PATH_FORMATS[crc32(run_id.encode()) % 2]
    opened = open_load(source.config(root, age_ms, path_format), files, root, clock=clock, run_id=run_id)
    ranges = source.plan(opened.head.offsets, share)
    if not ranges:
        return None
    load = WalkedLoad(
        config=opened.config,
        clock=clock,
        run_id=run_id,
        files=files,
        layout=opened.layout,
        store=opened.store,
        head=opened.head,
        topic_id=None,
        window_ms=WINDOW_MS,
        plan=LoadPlan(ranges=ranges, skipped=()),
        schemas=(),
        source=source,
    )
    return load.run(NO_SPARK)


def load_old(root: str, files: FileSystem, source: Source, run_id: str, clock: Callable[[], int]) -> Any:
    """Load as versions did that wrote manifests of version 1, and marks without content."""
    layout = topic_layout(root, TOPIC)
    with files.create(layout.run(run_id)):
        pass
    head = read_head(files, layout)
    if head.manifest is not None and head.manifest.version > 1:
        raise ManifestError("head", "has version 2; this program reads 1")
    ranges = source.plan(head.offsets, 0)
    offsets = {(loaded.partition, offset) for loaded in ranges for offset in range(loaded.start, loaded.end)}
    if not ranges or offsets & source.bad:
        raise ManifestError("plan", "nothing to load")
    load = WalkedLoad(
        config=source.config(root, 3_600_000),
        clock=clock,
        run_id=run_id,
        files=files,
        layout=layout,
        store=ManifestStore(files, layout),
        head=head,
        topic_id=None,
        window_ms=WINDOW_MS,
        plan=LoadPlan(ranges=ranges, skipped=()),
        schemas=(),
        source=source,
    )
    try:
        manifest, _ = load._write(NO_SPARK)
        old = tuple(replace(file, record_type=None, schema_id=None, batches=()) for file in manifest.files)
        manifest = replace(manifest, version=1, ends=(), schemas=(), files=old)
        commit(files, layout, manifest, head)
    except CommitOutcomeUnknownError:
        raise
    except PipelineError:
        clean_up_own_run(files, layout, run_id, ManifestStore(files, layout))
        raise
    files.delete(layout.run(run_id))
    return None


def rewriter(source: Source) -> Callable[..., Any]:
    """Return `rewrite` of `pipeline.hadoop.upkeep.rewriting` with the source in memory."""

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
        spec = source.spec(config.root, attempt.run_id, source.lookup_later, path_format)
        writer = TaskWriter(spec, files, layout, attempt)
        rows = source.rows(cluster.loaded)
        times = rows.column("timestamp_ms").to_numpy()
        of_hour = np.floor_divide(times, HOUR_MS) * HOUR_MS == cluster.hour_ms
        is_aside = aside.holds(cluster.loaded.partition, rows.column("offset").to_numpy())
        writer.add(rows.filter(pa.array(of_hour & ~is_aside)))
        again = []
        for file in writer.finish(0).files:
            if file.quarantined:
                files.delete(layout.absolute(file.path))
            else:
                again.append(file)
        pairs = match_files(cluster.files, sorted(again, key=lambda file: file.first_offset))
        if pairs is None:
            raise TopicChangedError(TOPIC, cluster.loaded, "other records")
        return pairs

    return rewrite
