"""Our broker beside Apache Kafka 4.1 on this machine, with the same clients.

Both servers run, idle but for the one that is measured; rounds take turns between them, so that a machine whose speed
drifts treats both alike. Each measurement is a client process of its own. What counts is the ratio of the medians.
"""

import tempfile
from pathlib import Path

from bench.broker import contract, lifecycle, many, throughput
from bench.page import machine, write_part
from bench.report import Options, Row, Show, markdown

ROUNDS = 3


def measure(options: Options, show: Show) -> list[Row]:
    """All selected rows."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as directory:
        rows += lifecycle.measure(options, options.rounds_or(ROUNDS), Path(directory, "both"), show)
        rows += contract.measure(
            options, options.rounds_or(contract.ROUNDS_OF_PAIRS), Path(directory, "contract"), show
        )
        rows += many.measure(options, options.rounds_or(ROUNDS), Path(directory, "many"), show)
    return sorted(rows, key=throughput.is_cpu_row)


def publish(rows: list[Row], options: Options) -> None:
    """The table of a full run goes to docs/benchmarks.md."""
    rounds = options.rounds_or(ROUNDS)
    write_part(
        "broker",
        f"Measured on {machine()}; medians of {rounds} rounds, {options.scale:.0%} of records.\n\n{markdown(rows)}",
    )
