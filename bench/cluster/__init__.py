"""Our three brokers beside three nodes of Apache Kafka 4.1 on this machine: replication factor 3, acks=all.

Both clusters run, idle but for the one that is measured; the clients are those of `bench.broker`. Then a follower of
each, which was away while its leader took data, catches up under load.
"""

import tempfile
from pathlib import Path

from bench.cluster import catch_up, throughput
from bench.cluster.servers import running_clusters
from bench.page import machine, write_part
from bench.report import Options, Row, Show, markdown

ROUNDS = 3


def measure(options: Options, show: Show) -> list[Row]:
    """All selected rows."""
    with (
        tempfile.TemporaryDirectory(prefix="pipeline-bench-") as directory,
        running_clusters(Path(directory), show) as servers,
    ):
        rows = throughput.measure(options, options.rounds_or(ROUNDS), servers, show)
        return rows + catch_up.measure(options, servers, show)


def publish(rows: list[Row], options: Options) -> None:
    """The table of a full run goes to docs/benchmarks.md."""
    rounds = options.rounds_or(ROUNDS)
    write_part(
        "cluster",
        f"Measured on {machine()}; medians of {rounds} rounds, {options.scale:.0%} of records.\n\n{markdown(rows)}",
    )
