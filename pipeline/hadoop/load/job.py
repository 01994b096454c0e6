"""The load job: writes new records of a topic to hourly files, and files, counts and offsets to one manifest.

The driver fixes the plan, Spark runs tasks over them (`load_tasks.py`), and the driver proves from the results that
every range is wholly in files, and commits. A run that is killed at any moment leaves either its manifest and all files
that it lists, or nothing that a reader would see; the next run starts from the last manifest.

The plan needs no Spark: `prepare_load` makes it, and Spark is started only if there are new records.
"""

import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

import trio

from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.hadoop.commit.layout import PathFormat, TopicLayout, check_run_id, topic_layout
from pipeline.hadoop.commit.manifest import (
    Manifest,
    OffsetRange,
    PartitionEnd,
    TableSchema,
    next_lost,
    next_offsets,
)
from pipeline.hadoop.commit.manifest_store import ManifestStore
from pipeline.hadoop.commit.publication import CommitOutcomeUnknownError, Head
from pipeline.hadoop.commit.runs import clean_up_dead_runs, clean_up_own_run, end_run, mark_run
from pipeline.hadoop.commit.store import CommitStore
from pipeline.hadoop.files.doors import FileSystem
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.load_tasks import LoadJob, Spark, run_tasks
from pipeline.hadoop.ranges.cluster_offsets import TopicState, offsets_at, topic_state
from pipeline.hadoop.ranges.plan import DataLossError, LoadPlan, plan_load
from pipeline.hadoop.ranges.source_ends import check_ends
from pipeline.hadoop.ranges.task_ranges import divide_ranges
from pipeline.model import Clock
from pipeline.records.tally import HOUR_MS

if TYPE_CHECKING:
    from pipeline.hadoop.ranges.batch_counts import TaskResult

logger = get_logger(__name__)

SHOWN_REASONS: Final = 5

_OF_JOBS: Final = (
    "pyspark",
    "pipeline.hadoop.avro.registry_lookup",
    "pipeline.hadoop.load.table_schemas",
    "pipeline.hadoop.ranges.batch_counts",
)
_WORKER_ERROR = re.compile(r"^(?:pipeline\.[\w.]+|[\w.]*Error): .*$", re.MULTILINE)


class LoadError(PipelineError):
    """The Spark job failed; nothing was committed."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"{topic}: the load failed, nothing was committed: {reason}")
        self.topic = topic
        self.reason = reason


class BadRecordError(PipelineError):
    """A record cannot be decoded. With `on.bad.record=quarantine` such records go to files of their own."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"{topic}-{partition} offset {offset}: {reason}; nothing was committed "
            "(on.bad.record=quarantine sets such records aside)"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason


class QuarantineLimitError(PipelineError):
    """More records were to be set aside than `quarantine.max.records`. `reasons` counts them by reason."""

    def __init__(self, topic: str, limit: int, reasons: Mapping[str, int]) -> None:
        most = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        shown = "; ".join(f"{count} times: {reason}" for reason, count in most[:SHOWN_REASONS])
        super().__init__(
            f"{topic}: {sum(reasons.values())} records would be set aside, more than quarantine.max.records ({limit}); "
            f"nothing was committed. {shown}"
        )
        self.topic = topic
        self.reasons = reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Result of a run. Without new records `manifest` is None and `committed` false."""

    committed: bool
    manifest: Manifest | None
    records: int = 0
    quarantined: int = 0
    files: int = 0

    @property
    def lost(self) -> int:
        """Offsets that were skipped as lost."""
        return 0 if self.manifest is None else sum(gap.end - gap.start for gap in self.manifest.skipped)


NOTHING_NEW: Final = LoadResult(committed=False, manifest=None)


def run_load(spark: Spark, config: LoadConfig, *, clock: Clock, run_id: str | None = None) -> LoadResult:
    """Load and commit the records that are new since the last manifest. Raises as `prepare_load` and its `run`."""
    prepared = prepare_load(config, clock=clock, run_id=run_id)
    return NOTHING_NEW if prepared is None else prepared.run(spark)


def prepare_load(config: LoadConfig, *, clock: Clock, run_id: str | None = None) -> "PreparedLoad | None":
    """Fix the plan of a load, without Spark. Return None if there are no new records.

    Raises ConfigurationError, DataLossError, LoadError, StorageError, SchemaError for a topic whose latest schema has
    no columns, and the clients' errors.
    """
    opened = open_load(
        config, *open_filesystem(config.root, timeout_s=config.store_timeout_ms / 1000), clock=clock, run_id=run_id
    )
    return trio.run(_ask_and_prepare, opened)


def import_for_jobs() -> None:
    """Import what `PreparedLoad.run` needs and a plan does without, in a thread of its own while a JVM starts."""
    for name in _OF_JOBS:
        import_module(name)


def open_load(
    config: LoadConfig, files: FileSystem, root: str, *, clock: Clock, run_id: str | None = None
) -> "OpenedLoad":
    """Begin a load below `root`, the path of `config.root`: clean up after dead runs, and read the last manifest.

    Raises ConfigurationError and StorageError.
    """
    run_id = check_run_id(run_id or secrets.token_hex(8))
    layout = topic_layout(root, config.topic)
    store = _store(config, files, layout)
    clean_up_dead_runs(files, layout, run_id, store)
    return OpenedLoad(
        config=config, clock=clock, run_id=run_id, files=files, layout=layout, store=store, head=store.read_head()
    )


def _store(config: LoadConfig, files: FileSystem, layout: TopicLayout) -> CommitStore:
    """Return where commits go. Raises LoadError if the topic's folder holds a table of the other kind."""
    is_iceberg = config.table == "iceberg"
    if files.list_files(layout.commits if is_iceberg else layout.iceberg_metadata):
        other = "manifest" if is_iceberg else "iceberg"
        reason = (
            f"table is {config.table}, but the topic was loaded with table={other} here. Load it below another root"
        )
        raise LoadError(config.topic, reason)
    if not is_iceberg:
        return ManifestStore(files, layout)
    from pipeline.hadoop.iceberg.store import IcebergStore

    return IcebergStore(config.root, config.topic, config.iceberg_catalog or {}, config.store_timeout_ms / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLoad:
    """A load that knows what is committed, and not yet what is new."""

    config: LoadConfig
    clock: Clock
    run_id: str
    files: FileSystem
    layout: TopicLayout
    store: CommitStore
    head: Head

    async def check_source(self, cluster: Cluster, state: TopicState) -> dict[int, OffsetRange]:
        """Compare the source with the last loaded batches, as `check_ends`. Raises as it does, and LoadError."""
        _check_same(self.config, self.head, state)
        ends = () if self.head.manifest is None else self.head.manifest.ends
        accepted = self.config.accepted_offsets()
        return await check_ends(cluster, self.config.topic, ends, state.bounds, self.head.offsets, accepted)

    async def prepare(
        self, state: TopicState, first_start: Mapping[int, int] | None, replaced: Mapping[int, OffsetRange]
    ) -> "PreparedLoad | None":
        """Fix the plan; `first_start` and `replaced` as in `plan_load`. Return None if there are no new records.

        Raises DataLossError, LoadError, SchemaError for a topic whose latest schema has no columns, and the errors of
        the registry's client.
        """
        config, head = self.config, self.head
        window_ms = _check_same(config, head, state)
        plan = plan_load(
            config.topic,
            head.offsets,
            state.bounds,
            first_start=first_start,
            fail_on_data_loss=config.fail_on_data_loss,
            replaced=replaced,
        )
        if not plan.ranges and not plan.skipped:
            return None
        from pipeline.hadoop.load.table_schemas import plan_schemas

        schemas = await plan_schemas(config, () if head.manifest is None else head.manifest.schemas)
        return PreparedLoad(
            config=config,
            clock=self.clock,
            run_id=self.run_id,
            files=self.files,
            layout=self.layout,
            store=self.store,
            head=head,
            topic_id=state.topic_id,
            window_ms=window_ms,
            plan=plan,
            schemas=schemas,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLoad:
    """A load whose plan is fixed."""

    config: LoadConfig
    clock: Clock
    run_id: str
    files: FileSystem
    layout: TopicLayout
    store: CommitStore
    head: Head
    topic_id: str | None
    window_ms: int
    plan: LoadPlan
    schemas: tuple[TableSchema, ...]

    @property
    def path_format(self) -> PathFormat:
        """Format of the folders, which a load without a setting keeps."""
        last = self.head.manifest
        return self.config.path_format or ("hourly" if last is None else last.path_format)

    def run(self, spark: Spark) -> LoadResult:
        """Carry out the plan and commit.

        Raises CommitConflictError if another load committed first; DataLossError, BadRecordError, CoverageError,
        LoadError and StorageError with nothing committed; CommitOutcomeUnknownError.
        """
        config, files, layout, store = self.config, self.files, self.layout, self.store
        mark_run(files, layout, self.run_id, head=self.head.next_sequence - 1, orphan_age_ms=config.orphan_age_ms)
        try:
            manifest, has_leftovers = self._write(spark)
            manifest = store.commit(manifest, self.head, orphan_age_ms=config.orphan_age_ms)
        except CommitOutcomeUnknownError:
            raise
        except Exception:
            _clean_up_quietly(files, layout, self.run_id, store)
            raise
        store.after_commit(manifest.sequence, self.run_id)
        if has_leftovers:
            _clean_up_quietly(files, layout, self.run_id, store)
        try:
            end_run(files, layout, self.run_id)
        except PipelineError as error:  # the commit stands without it
            logger.warning("load_mark_not_removed", topic_root=layout.topic_root, reason=str(error))
        logger.info("load_committed", topic=config.topic, sequence=manifest.sequence, records=manifest.records)
        return LoadResult(
            committed=True,
            manifest=manifest,
            records=manifest.records,
            quarantined=manifest.quarantined_records,
            files=len(manifest.files),
        )

    def _write(self, spark: Spark) -> tuple[Manifest, bool]:
        """Run the job. Return the manifest to commit, and True if failed attempts may have left files."""
        from pipeline.hadoop.avro.registry_lookup import RegistryLookup
        from pipeline.hadoop.load.table_schemas import with_found_types
        from pipeline.hadoop.ranges.batch_counts import check_coverage

        config, plan, head = self.config, self.plan, self.head
        tasks = divide_ranges(
            plan.ranges,
            record_bytes=_record_bytes(head),
            parallelism=spark.sparkContext.defaultParallelism,
            max_records=config.max_records_per_task,
        )
        results = self._run_tasks(spark, tasks) if tasks else []
        bad = [result.bad_record for result in results if result.bad_record is not None]
        if bad:
            raise BadRecordError(config.topic, *min(bad))
        self._check_quarantine(results)
        parts = [part for task in tasks for part in task]
        covered = check_coverage(config.topic, parts, results, self.window_ms)
        last = head.manifest
        # A batch that was given up (`accept.truncation`) is asked for no more, also if nothing new was loaded after it.
        ends = {} if last is None else {end.partition: end for end in last.ends if not _is_given_up(end, plan.skipped)}
        manifest = Manifest(
            sequence=head.next_sequence,
            run_id=self.run_id,
            created_ms=self.clock(),
            topic=config.topic,
            topic_id=self.topic_id,
            format=config.format,
            window_ms=self.window_ms,
            offsets=next_offsets(head.offsets, plan.ranges, plan.skipped),
            ranges=plan.ranges,
            skipped=plan.skipped,
            files=covered.files,
            counts=covered.counts,
            sums=covered.sums,
            aborted=covered.aborted,
            schemas=with_found_types(self.schemas, covered.files, RegistryLookup(config.registry, config.login)),
            ends=tuple(sorted((ends | dict(covered.last_batches)).values())),
            path_format=self.path_format,
            lost=next_lost({} if last is None else last.lost, plan.skipped),
            previous_sha256=head.sha256,
        )
        has_retries = any(result.attempt_number for result in results)
        speculates = spark.sparkContext.getConf().get("spark.speculation", "false") == "true"
        return manifest, has_retries or speculates

    def _check_quarantine(self, results: "Iterable[TaskResult]") -> None:
        """Raise QuarantineLimitError if more records were set aside than allowed."""
        reasons: Counter[str] = Counter()
        for result in results:
            reasons.update(result.aside_reasons)
        if reasons.total() > self.config.quarantine_max_records:
            raise QuarantineLimitError(self.config.topic, self.config.quarantine_max_records, reasons)

    def _run_tasks(self, spark: Spark, tasks: "Sequence[tuple[OffsetRange, ...]]") -> "list[TaskResult]":
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from pipeline.hadoop.avro.registry_lookup import RegistryLookup
        from pipeline.hadoop.load.task_spec import TaskSpec

        config = self.config
        registry = RegistryLookup(config.registry, config.login) if config.value_format == "avro" else None
        spec = TaskSpec(
            root=config.root,
            topic=config.topic,
            run_id=self.run_id,
            format=config.format,
            codec=config.codec,
            window_ms=self.window_ms,
            quarantine=config.on_bad_record == "quarantine",
            store_timeout_s=config.store_timeout_ms / 1000,
            schemas=registry,
            is_iceberg=config.table == "iceberg",
            path_format=self.path_format,
            table_schemas=self.schemas,
            versions=None if registry is None else registry.versions,
        )
        client = ClientConfig(
            bootstrap=config.bootstrap, client_id=f"pipeline-load-{self.run_id}", security=config.security
        )
        job = LoadJob(
            client=client,
            spec=spec,
            tasks=tuple(tasks),
            max_opened_bytes=config.max_opened_bytes,
            isolation_level=config.isolation,
        )
        try:
            return run_tasks(spark, job)
        except (PySparkException, Py4JError) as error:
            # The error that a worker raised, without the traces that Spark puts around it.
            found = _WORKER_ERROR.findall(str(error)) or [str(error).strip().split("\n", 1)[0]]
            raise LoadError(config.topic, found[-1]) from error


async def _ask_and_prepare(opened: OpenedLoad) -> PreparedLoad | None:
    config = opened.config
    client = ClientConfig(bootstrap=config.bootstrap, client_id="pipeline-load", security=config.security)
    async with open_cluster(client) as cluster:
        state = (await topic_state(cluster, config.topic)).at(config.isolation)
        first_start = None
        if config.start_timestamp_ms is not None:
            first_start = await offsets_at(cluster, state, config.start_timestamp_ms, config.isolation)
        replaced = await opened.check_source(cluster, state)
    return await opened.prepare(state, first_start, replaced)


def _check_same(config: LoadConfig, head: Head, state: TopicState) -> int:
    """Return the length of the table's windows.

    Raises LoadError if length or format are others than those of the settings, DataLossError if the topic has another
    id now than in the last manifest.
    """
    last = head.manifest
    if last is None:
        return config.window_ms
    if last.window_ms != config.window_ms:
        reason = f"window.ms is {config.window_ms}, but the manifests have {last.window_ms}"
        if HOUR_MS % last.window_ms == 0:
            raise LoadError(config.topic, f"{reason}: set window.ms={last.window_ms}")
        # A length that an earlier version took, and that can be set no more.
        logger.warning("load_windows_do_not_divide_an_hour", topic=config.topic, window_ms=last.window_ms)
    if last.format != config.format:
        reason = f"format is {config.format}, but the topic was loaded as {last.format} so far. "
        raise LoadError(config.topic, f"{reason}Set format={last.format}, or load below another root")
    if last.topic_id is not None and state.topic_id is not None and last.topic_id != state.topic_id:
        partition, offset = min(last.offsets.items())
        missing = OffsetRange(partition=partition, start=offset, end=offset)
        reason = "the topic was deleted and created again since the last load. Load it below another root"
        raise DataLossError(config.topic, missing, reason)
    return last.window_ms


def _record_bytes(head: Head) -> float | None:
    """Return the mean size of a record in the log, by the last commit; None if that does not tell."""
    counted = [] if head.manifest is None else list(head.manifest.counts.values())
    records = sum(counts.records for counts in counted)
    return sum(counts.bytes for counts in counted) / records if records else None


def _is_given_up(end: PartitionEnd, skipped: Iterable[OffsetRange]) -> bool:
    return any(gap.partition == end.partition and gap.start <= end.base_offset < gap.end for gap in skipped)


def _clean_up_quietly(files: FileSystem, layout: TopicLayout, run_id: str, store: CommitStore) -> None:
    """Clean up after the outcome is certain. Failures are logged, so that the caller still learns the outcome."""
    try:
        clean_up_own_run(files, layout, run_id, store)
    except PipelineError as error:
        logger.warning("load_clean_up_failed", topic_root=layout.topic_root, reason=str(error))
