"""Loads of many topics by one Spark application, side by side, each topic with a commit of its own.

Invariants:

A. A topic that fails stops no other topic.
B. Planning takes one request for the metadata of all topics and two requests to each broker, and reads the last
   manifests by a bounded number of threads.
C. Spark is asked for only if a topic has new records.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import trio

from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.hadoop.commit.publication import CommitConflictError
from pipeline.hadoop.files.doors import FileSystem
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.load.config import LoadsConfig
from pipeline.hadoop.load.job import (
    NOTHING_NEW,
    LoadError,
    LoadResult,
    OpenedLoad,
    PreparedLoad,
    import_for_jobs,
    open_load,
)
from pipeline.hadoop.load.load_tasks import Spark
from pipeline.hadoop.ranges.cluster_offsets import TopicState, offsets_at, topic_states
from pipeline.model import Clock
from pipeline.net.nurseries import unwrapped_errors

logger = get_logger(__name__)

PLANNING_THREADS: Final = 16
PLANNING_TIMEOUT_MS: Final = 20_000
"""Time in which the brokers have to tell a topic's offsets, so that one without a leader does not hold up the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """Outcome of a topic's load: a result or an error.

    lag: records that are known and not loaded; None if the plan was not made.
    """

    topic: str
    seconds: float
    result: LoadResult | None = None
    error: PipelineError | None = None
    lag: int | None = 0

    @property
    def is_conflict(self) -> bool:
        """True if another run committed first."""
        return isinstance(self.error, CommitConflictError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A plan, or its error; neither if there is nothing new."""

    topic: str
    prepared: PreparedLoad | None = None
    error: PipelineError | None = None

    @property
    def lag(self) -> int:
        ranges = () if self.prepared is None else self.prepared.plan.ranges
        return sum(loaded.end - loaded.start for loaded in ranges)


def run_loads(spark: Spark | Callable[[], Spark], config: LoadsConfig, *, clock: Clock) -> list[TopicResult]:
    """Load and commit what is new in all topics of `config`, and return a result for each, by name.

    spark: a session, or a function that starts one, which is called only if there are new records.
    Errors of a topic are in its result. Raises the client's errors if the topics cannot be listed, and what `spark`
    raises.
    """
    began = time.monotonic()
    planned = plan_loads(config, clock=clock)
    seconds = time.monotonic() - began
    results = [
        TopicResult(topic=plan.topic, seconds=seconds, error=plan.error, lag=None)
        if plan.error is not None
        else TopicResult(topic=plan.topic, seconds=seconds, result=NOTHING_NEW)
        for plan in planned
        if plan.prepared is None
    ]
    waiting = sorted((plan for plan in planned if plan.prepared is not None), key=lambda plan: -plan.lag)
    if waiting:
        with ThreadPoolExecutor(config.selection.parallel, "load") as threads:
            threads.submit(import_for_jobs)  # an import that fails does so again where it is needed
            started = spark() if callable(spark) else spark
            results += threads.map(lambda plan: _carry_out(started, plan), waiting)
    return sorted(results, key=lambda result: result.topic)


def plan_loads(config: LoadsConfig, *, clock: Clock) -> list[_Planned]:
    """Plan the loads of all topics, without Spark. Raises the client's errors if the topics cannot be listed."""
    with unwrapped_errors():
        return trio.run(_plan_all, config, clock)


async def _plan_all(config: LoadsConfig, clock: Clock) -> list[_Planned]:
    client = ClientConfig(
        bootstrap=config.bootstrap,
        client_id="pipeline-load",
        default_api_timeout_ms=PLANNING_TIMEOUT_MS,
        security=config.security,
    )
    async with open_cluster(client) as cluster:
        topics = set(config.named)
        if config.selection.include is not None:
            listed = await cluster.fetch_all_topics()
            topics |= {topic for topic in listed.topics if config.selects(topic)}
        opened: dict[str, OpenedLoad | PipelineError] = {}
        states: dict[str, TopicState | PipelineError] = {}
        async with trio.open_nursery() as nursery:

            async def open_all() -> None:
                await _open_all(config, topics, clock, opened)
                if all(isinstance(load, PipelineError) for load in opened.values()):
                    nursery.cancel_scope.cancel()  # nothing is to be loaded, whatever the brokers say

            nursery.start_soon(open_all)
            states |= await topic_states(cluster, topics)
        planned: list[_Planned] = []
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(_plan, cluster, topic, opened[topic], states.get(topic), planned)
    return planned


async def _open_all(
    config: LoadsConfig, topics: Iterable[str], clock: Clock, opened: dict[str, OpenedLoad | PipelineError]
) -> None:
    """Read the heads of all topics, in threads; a file system is opened once."""
    limiter = trio.CapacityLimiter(PLANNING_THREADS)
    roots: dict[str, tuple[FileSystem, str]] = {}

    def read(topic: str) -> OpenedLoad | PipelineError:
        try:
            settings = config.config_of(topic)
            if settings.root not in roots:
                roots[settings.root] = open_filesystem(settings.root, timeout_s=settings.store_timeout_ms / 1000)
            return open_load(settings, *roots[settings.root], clock=clock)
        except PipelineError as error:
            return error
        except Exception as error:  # invariant A
            return _unexpected(topic, error)

    async def open_one(topic: str) -> None:
        opened[topic] = await trio.to_thread.run_sync(read, topic, limiter=limiter)

    async with trio.open_nursery() as nursery:
        for topic in topics:
            nursery.start_soon(open_one, topic)


async def _plan(
    cluster: Cluster,
    topic: str,
    opened: OpenedLoad | PipelineError,
    state: TopicState | PipelineError | None,
    planned: list[_Planned],
) -> None:
    for known in (opened, state):
        if isinstance(known, PipelineError):
            planned.append(_Planned(topic=topic, error=known))
            return
    assert isinstance(opened, OpenedLoad)
    assert isinstance(state, TopicState)
    try:
        state = state.at(opened.config.isolation)
        first_start = None
        since_ms = opened.config.start_timestamp_ms
        if since_ms is not None and not state.bounds.keys() <= opened.head.offsets.keys():
            with unwrapped_errors():
                first_start = await offsets_at(cluster, state, since_ms, opened.config.isolation)
        with unwrapped_errors():
            replaced = await opened.check_source(cluster, state)
            prepared = await opened.prepare(state, first_start, replaced)
        planned.append(_Planned(topic=topic, prepared=prepared))
    except PipelineError as error:
        planned.append(_Planned(topic=topic, error=error))
    except Exception as error:  # invariant A
        planned.append(_Planned(topic=topic, error=_unexpected(topic, error)))


def _carry_out(spark: Spark, plan: _Planned) -> TopicResult:
    """Load one topic, in a thread of its own, whose jobs share the cores with those of other topics."""
    began = time.monotonic()
    assert plan.prepared is not None
    failed = TopicResult(topic=plan.topic, seconds=0, lag=plan.lag)
    try:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", plan.topic)
        result = plan.prepared.run(spark)
        return TopicResult(topic=plan.topic, seconds=time.monotonic() - began, result=result)
    except PipelineError as error:
        return replace(failed, error=error, seconds=time.monotonic() - began)
    except Exception as error:
        return replace(failed, error=_unexpected(plan.topic, error), seconds=time.monotonic() - began)


def _unexpected(topic: str, error: Exception) -> LoadError:
    """Log an error that is handled. Return it as one of the topic."""
    logger.exception("load_failed_unexpectedly", topic=topic)
    return LoadError(topic, f"{type(error).__name__}: {error}")


def worst_of(results: Sequence[TopicResult]) -> type[PipelineError] | None:
    """Return None if no topic failed, CommitConflictError if topics failed in no other way, else PipelineError."""
    failed = [result for result in results if result.error is not None]
    if not failed:
        return None
    return CommitConflictError if all(result.is_conflict for result in failed) else PipelineError
