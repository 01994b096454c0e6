"""Reports the counts of commits to the audit."""

from typing import TYPE_CHECKING

from pipeline.cli.terminal.connect import randomness, wall_clock

if TYPE_CHECKING:
    from pipeline.hadoop.load.config import LoadConfig

REPORTED_COMMITS = 10
"""Commits whose counts each run reports to the audit again: an earlier run may have died before its report."""


async def report_counts(config: "LoadConfig", datacenter: str) -> None:
    """Report the committed counts to the audit. A repeated report changes nothing."""
    from pipeline.audit.publisher import publish_load
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig
    from pipeline.hadoop.commit.checkpoints import read_manifest, read_state
    from pipeline.hadoop.commit.layout import topic_layout
    from pipeline.hadoop.files.filesystem import open_filesystem
    from pipeline.model import TopicPartition
    from pipeline.records.tally import Counts

    files, path = open_filesystem(config.root)
    layout = topic_layout(path, config.topic)
    state = read_state(files, layout)
    numbers = range(max(1, state.sequence - REPORTED_COMMITS + 1), state.sequence + 1)
    recent = {key for number in numbers for key in read_manifest(files, layout, number)[0].counts}
    counts: dict[TopicPartition, dict[int, Counts]] = {}
    for key in recent:
        partition, start = key
        counts.setdefault(TopicPartition(config.topic, partition), {})[start] = state.counts[key]
    async with open_cluster(ClientConfig(bootstrap=config.bootstrap, client_id="pipeline-load")) as cluster:
        await publish_load(
            cluster,
            datacenter,
            counts,
            up_to={TopicPartition(config.topic, p): o for p, o in state.offsets.items()},
            window_ms=config.window_ms,
            clock=wall_clock,
            rng=randomness(),
        )
