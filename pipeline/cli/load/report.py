"""Reports the counts of commits to the audit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import trio

from pipeline.cli.terminal.connect import randomness, wall_clock

if TYPE_CHECKING:
    from pipeline.audit.counting.load_rows import CommittedCounts
    from pipeline.audit.events.report import LatencyCounts, SkippedOffsets
    from pipeline.audit.events.tiers import Tier
    from pipeline.client.cluster.cluster import Cluster
    from pipeline.hadoop.commit.manifest import Manifest, WindowKey
    from pipeline.hadoop.commit.table_state import TableState
    from pipeline.hadoop.iceberg.history import IcebergHistory
    from pipeline.hadoop.load.config import LoadConfig, LoadsConfig
    from pipeline.hadoop.load.many import TopicResult
    from pipeline.hadoop.upkeep.verification import FileDifference

REPORTED_COMMITS = 10
"""Commits whose counts each run reports to the audit again: an earlier run may have died before its report."""


async def report_counts(loads: "LoadsConfig", results: "Iterable[TopicResult]", datacenter: str) -> None:
    """Report the committed counts of all topics that did not fail. A repeated report changes nothing."""
    from pipeline.audit.events.tiers import Tier
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig

    client = ClientConfig(bootstrap=loads.bootstrap, client_id="pipeline-load", security=loads.security)
    async with open_cluster(client) as cluster:
        for outcome in results:
            if outcome.error is None:
                config = loads.config_of(outcome.topic)
                read = _iceberg_commits if config.table == "iceberg" else _manifests
                commits = await trio.to_thread.run_sync(read, config)
                if commits is not None:
                    await _report_topic(cluster, config, datacenter, commits, Tier.LOAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commits:
    """The last commits of a topic, the sums over all commits, and the records in quarantine by window.

    Sums of windows before `since_ms` are not known; None if all are.
    """

    last: "Sequence[Manifest]"
    state: "TableState"
    aside: "Mapping[WindowKey, int]"
    since_ms: int | None = None
    starts: "Mapping[int, int]" = field(default_factory=dict)
    """First loaded offsets of the partitions of the first commit, as long as its manifest has not expired."""


def _manifests(config: "LoadConfig") -> _Commits | None:
    from pipeline.hadoop.commit.checkpoints import read_manifest, read_state
    from pipeline.hadoop.commit.layout import topic_layout
    from pipeline.hadoop.commit.manifest import ManifestError, set_aside
    from pipeline.hadoop.files.filesystem import open_filesystem

    files, path = open_filesystem(config.root)
    layout = topic_layout(path, config.topic)
    state = read_state(files, layout)
    if state.last is None:
        return None
    numbers = range(max(1, state.sequence - REPORTED_COMMITS + 1), state.sequence + 1)
    manifests = [read_manifest(files, layout, number)[0] for number in numbers]
    starts: dict[int, int] = {}
    with suppress(ManifestError):
        first = manifests[0] if numbers[0] == 1 else read_manifest(files, layout, 1)[0]
        starts = {loaded.partition: loaded.start for loaded in (*first.ranges, *first.skipped)}
    return _Commits(last=manifests, state=state, aside=set_aside(state.data_files(quarantined=True)), starts=starts)


def _iceberg_commits(config: "LoadConfig") -> _Commits | None:
    from pipeline.hadoop.iceberg.history import read_iceberg_history
    from pipeline.hadoop.iceberg.store import IcebergStore

    catalog = config.iceberg_catalog or {}
    history = read_iceberg_history(IcebergStore(config.root, config.topic, catalog, config.store_timeout_ms / 1000))
    if history is None:
        return None
    totals = history.totals
    last = history.commits[-REPORTED_COMMITS:]
    return _Commits(last=last, state=history.state, aside=totals.aside, since_ms=totals.since_ms)


async def _report_topic(
    cluster: "Cluster", config: "LoadConfig", datacenter: str, commits: _Commits, tier: "Tier"
) -> None:
    from pipeline.audit.counting.load_rows import load_report
    from pipeline.audit.counting.publisher import publish_reports

    assert commits.state.last is not None
    report = load_report(
        committed_counts(commits),
        tier=tier,
        datacenter=datacenter,
        root=config.root,
        topic=config.topic,
        window_ms=commits.state.last.window_ms,
        now_ms=wall_clock(),
    )
    await publish_reports(cluster, [report], clock=wall_clock, rng=randomness())


def committed_counts(commits: _Commits) -> "CommittedCounts":
    """Return what the audit is to know of a table: what the last commits changed, with all that was loaded before."""
    from pipeline.audit.counting.load_rows import CommittedCounts
    from pipeline.hadoop.commit.manifest import set_aside

    state, since_ms = commits.state, commits.since_ms
    assert state.last is not None
    return CommittedCounts(
        counts=state.counts,
        sums=state.sums,
        aside=commits.aside,
        changed={key for each in commits.last for key in (*each.counts, *set_aside(each.files))},
        offsets=state.offsets,
        starts=commits.starts,
        lost=state.last.lost,
        skipped=[passed for each in commits.last for passed in _skipped(each)],
        latencies=[latency for each in commits.last for latency in _latencies(each)],
        is_known=lambda start_ms: since_ms is None or start_ms >= since_ms,
    )


def _skipped(commit: "Manifest") -> "Iterator[SkippedOffsets]":
    from pipeline.audit.events.report import SkippedOffsets, SkipReason

    for gap in commit.skipped:
        offsets = gap.end - gap.start
        yield SkippedOffsets(0, gap.partition, None, gap.start, gap.end - 1, offsets, SkipReason.LOST)
    for each in commit.aborted:
        span = each.first_offset, each.last_offset
        yield SkippedOffsets(0, each.partition, each.hour_ms, *span, each.records, SkipReason.ABORTED)


def _latencies(commit: "Manifest") -> "Iterator[LatencyCounts]":
    """Yield by window the time from the middle of the window to the commit: the batches' own times are not kept."""
    from pipeline.audit.counting.latency import LatencySketch
    from pipeline.audit.events.report import LatencyCounts

    records: dict[int, int] = {}
    for (_, start_ms), counts in commit.counts.items():
        records[start_ms] = records.get(start_ms, 0) + counts.records
    for start_ms, count in sorted(records.items()):
        if count > 0:
            sketch = LatencySketch()
            sketch.add([max(1, commit.created_ms - start_ms - commit.window_ms // 2)], [count])
            yield LatencyCounts(0, start_ms, commit.run_id, sketch.buckets())


async def report_stored(
    config: "LoadConfig", datacenter: str, state: "TableState", differences: "Sequence[FileDifference]"
) -> None:
    """Report what the files of a table hold, which differ so from what was committed. Raises PipelineError."""
    from pipeline.hadoop.upkeep.stored_counts import stored_counts
    from pipeline.hadoop.upkeep.verification import held_otherwise

    if state.last is not None:
        damaged, doubled = held_otherwise(differences)
        is_whole = damaged <= state.files.keys()
        stored = stored_counts(state, damaged, doubled=doubled, is_whole=is_whole)
        held = replace(state, counts=stored.counts, sums=stored.sums)
        await _report_stored(config, datacenter, held, stored.aside)


async def report_stored_iceberg(
    config: "LoadConfig", datacenter: str, history: "IcebergHistory", differences: "Sequence[FileDifference]"
) -> bool:
    """Report what an Iceberg table holds, which differs so from what was committed; False if nobody can tell.

    Raises PipelineError.
    """
    from pipeline.hadoop.upkeep.stored_counts import with_doubled, without_sums
    from pipeline.hadoop.upkeep.verification import held_otherwise

    if history.expired:
        return False
    totals, state = history.totals, history.state
    damaged, doubled = held_otherwise(differences)
    counts, touched = with_doubled(state.counts, doubled)
    sums = {key: value for key, value in state.sums.items() if not damaged and key not in touched}
    held = replace(state, counts=without_sums(counts) if damaged else counts, sums=sums)
    await _report_stored(config, datacenter, held, totals.aside, since_ms=totals.since_ms)
    return True


async def _report_stored(
    config: "LoadConfig",
    datacenter: str,
    held: "TableState",
    aside: "Mapping[WindowKey, int]",
    *,
    since_ms: int | None = None,
) -> None:
    """Report all windows: a file that was restored raises its hours again."""
    from pipeline.audit.counting.load_rows import load_report
    from pipeline.audit.counting.publisher import publish_reports
    from pipeline.audit.events.tiers import Tier
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig

    assert held.last is not None
    commits = _Commits(last=(), state=held, aside=aside, since_ms=since_ms)
    report = load_report(
        replace(committed_counts(commits), changed={*held.counts, *aside}),
        tier=Tier.STORED,
        datacenter=datacenter,
        root=config.root,
        topic=config.topic,
        window_ms=held.last.window_ms,
        now_ms=wall_clock(),
    )
    client = ClientConfig(bootstrap=config.bootstrap, client_id="pipeline-load", security=config.security)
    async with open_cluster(client) as cluster:
        await publish_reports(cluster, [report], clock=wall_clock, rng=randomness())
