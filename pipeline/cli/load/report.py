"""Reports the counts of commits to the audit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from pipeline.cli.terminal.connect import randomness, wall_clock

if TYPE_CHECKING:
    from pipeline.client.cluster.cluster import Cluster
    from pipeline.hadoop.commit.manifest import Manifest, WindowKey
    from pipeline.hadoop.commit.table_state import TableState
    from pipeline.hadoop.load.config import LoadConfig, LoadsConfig
    from pipeline.hadoop.load.many import TopicResult

REPORTED_COMMITS = 10
"""Commits whose counts each run reports to the audit again: an earlier run may have died before its report."""


async def report_counts(loads: "LoadsConfig", results: "Iterable[TopicResult]", datacenter: str) -> None:
    """Report the committed counts of all topics that did not fail. A repeated report changes nothing."""
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig

    async with open_cluster(ClientConfig(bootstrap=loads.bootstrap, client_id="pipeline-load")) as cluster:
        for outcome in results:
            if outcome.error is None:
                config = loads.config_of(outcome.topic)
                read = _iceberg_commits if config.table == "iceberg" else _manifests
                commits = await trio.to_thread.run_sync(read, config)
                if commits is not None:
                    await _report_topic(cluster, outcome.topic, datacenter, commits)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commits:
    """The last commits of a topic, the sums over all commits, and the records in quarantine by window.

    Sums of windows before `since_ms` are not known; None if all are.
    """

    last: "Sequence[Manifest]"
    state: "TableState"
    aside: "Mapping[WindowKey, int]"
    since_ms: int | None = None


def _manifests(config: "LoadConfig") -> _Commits | None:
    from pipeline.hadoop.commit.checkpoints import read_manifest, read_state
    from pipeline.hadoop.commit.layout import topic_layout
    from pipeline.hadoop.commit.manifest import set_aside
    from pipeline.hadoop.files.filesystem import open_filesystem

    files, path = open_filesystem(config.root)
    layout = topic_layout(path, config.topic)
    state = read_state(files, layout)
    if state.last is None:
        return None
    numbers = range(max(1, state.sequence - REPORTED_COMMITS + 1), state.sequence + 1)
    manifests = [read_manifest(files, layout, number)[0] for number in numbers]
    return _Commits(last=manifests, state=state, aside=set_aside(state.data_files(quarantined=True)))


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


async def _report_topic(cluster: "Cluster", topic: str, datacenter: str, commits: _Commits) -> None:
    from pipeline.audit.publisher import publish_load
    from pipeline.hadoop.commit.manifest import set_aside
    from pipeline.model import TopicPartition
    from pipeline.records.tally import NOTHING, Counts

    state = commits.state
    assert state.last is not None
    places = {number: TopicPartition(topic, number) for number in state.offsets}
    lost = {places[number]: offsets for number, offsets in state.last.lost.items()}
    counts: dict[TopicPartition, dict[int, Counts]] = {partition: {} for partition in lost}
    quarantined: dict[TopicPartition, dict[int, int]] = {}
    for key in {key for each in commits.last for key in (*each.counts, *set_aside(each.files))}:
        partition, start = key
        if commits.since_ms is not None and start < commits.since_ms:
            continue
        counts.setdefault(places[partition], {})[start] = state.counts.get(key, NOTHING)
        if key in commits.aside:
            quarantined.setdefault(places[partition], {})[start] = commits.aside[key]
    await publish_load(
        cluster,
        datacenter,
        counts,
        quarantined=quarantined,
        lost_offsets=lost,
        up_to={places[number]: offset for number, offset in state.offsets.items()},
        window_ms=state.last.window_ms,
        clock=wall_clock,
        rng=randomness(),
    )
