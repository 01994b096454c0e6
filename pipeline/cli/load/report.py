"""Reports the counts of commits to the audit."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipeline.cli.terminal.connect import randomness, wall_clock

if TYPE_CHECKING:
    from pipeline.client.cluster.cluster import Cluster
    from pipeline.hadoop.load.config import LoadsConfig
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
                await _report_topic(cluster, loads.config_of(outcome.topic).root, outcome.topic, datacenter)


async def _report_topic(cluster: "Cluster", root: str, topic: str, datacenter: str) -> None:
    from pipeline.audit.publisher import publish_load
    from pipeline.hadoop.commit.checkpoints import read_manifest, read_state
    from pipeline.hadoop.commit.layout import topic_layout
    from pipeline.hadoop.commit.manifest import set_aside
    from pipeline.hadoop.files.filesystem import open_filesystem
    from pipeline.model import TopicPartition
    from pipeline.records.tally import NOTHING, Counts

    files, path = open_filesystem(root)
    layout = topic_layout(path, topic)
    state = read_state(files, layout)
    if state.last is None:
        return
    numbers = range(max(1, state.sequence - REPORTED_COMMITS + 1), state.sequence + 1)
    manifests = [read_manifest(files, layout, number)[0] for number in numbers]
    places = {number: TopicPartition(topic, number) for number in state.offsets}
    lost = {places[number]: offsets for number, offsets in state.last.lost.items()}
    counts: dict[TopicPartition, dict[int, Counts]] = {partition: {} for partition in lost}
    quarantined: dict[TopicPartition, dict[int, int]] = {}
    aside = set_aside(state.data_files(quarantined=True))
    for key in {key for each in manifests for key in (*each.counts, *set_aside(each.files))}:
        partition, start = key
        counts.setdefault(places[partition], {})[start] = state.counts.get(key, NOTHING)
        if key in aside:
            quarantined.setdefault(places[partition], {})[start] = aside[key]
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
