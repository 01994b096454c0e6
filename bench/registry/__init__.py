"""The registry: reads beside a bare web application, its start with 100,000 schemas, registrations, and comparisons."""

import tempfile
from pathlib import Path

from bench.page import machine, write_part
from bench.registry import comparing, reads, registering
from bench.report import Options, Row, Show, markdown

PARTS = (reads, registering, comparing)
"""Each has `measure(options, directory, show)`, and owns the directory while it measures."""


def measure(options: Options, show: Show) -> list[Row]:
    """All selected rows of all parts."""
    rows: list[Row] = []
    for part in PARTS:
        with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as directory:
            rows += part.measure(options, Path(directory), show)
    return rows


def publish(rows: list[Row], options: Options) -> None:
    """The table of a full run goes to docs/benchmarks.md."""
    scale = f"{options.scale:.0%} of the time and the schemas"
    write_part(
        "registry",
        f"Measured on {machine()}; medians of {options.rounds_or(reads.ROUNDS)} rounds, {scale}.\n\n{markdown(rows)}",
    )
