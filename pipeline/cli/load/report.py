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
    from pipeline.hadoop.commit.manifest import committed_counts, committed_offsets
    from pipeline.hadoop.commit.publication import read_manifests
    from pipeline.model import TopicPartition
    from pipeline.records.tally import Counts

    manifests = read_manifests(config.root, config.topic)
    recent = {key for manifest in manifests[-REPORTED_COMMITS:] for key in manifest.counts}
    counts: dict[TopicPartition, dict[int, Counts]] = {}
    for key, committed in committed_counts(manifests).items():
        if key in recent:
            partition, start = key
            counts.setdefault(TopicPartition(config.topic, partition), {})[start] = committed
    async with open_cluster(ClientConfig(bootstrap=config.bootstrap, client_id="pipeline-load")) as cluster:
        await publish_load(
            cluster,
            datacenter,
            counts,
            up_to={TopicPartition(config.topic, p): o for p, o in committed_offsets(manifests).items()},
            window_ms=config.window_ms,
            clock=wall_clock,
            rng=randomness(),
        )
