"""Our broker over TLS and SASL beside Apache Kafka 4.1 on this machine, what ACLs cost, and a storm of handshakes.

Both servers have the same certificate, the same user of SCRAM-SHA-512 and the same client. Rounds take turns.
"""

import tempfile
from pathlib import Path

from bench.page import machine, write_part
from bench.report import Options, Row, Show, markdown
from bench.security import acls, encrypted, storm

ROUNDS = 5


def measure(options: Options, show: Show) -> list[Row]:
    """All selected rows."""
    rounds = options.rounds_or(ROUNDS)
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as directory:
        return [
            *encrypted.measure(options, rounds, Path(directory, "both"), show),
            *acls.measure(options, rounds, Path(directory, "acls"), show),
            *storm.measure(options, rounds, Path(directory, "storm"), show),
        ]


def publish(rows: list[Row], options: Options) -> None:
    """The table of a full run goes to docs/benchmarks.md."""
    rounds = options.rounds_or(ROUNDS)
    write_part(
        "security",
        f"Measured on {machine()}; medians of {rounds} rounds, {options.scale:.0%} of records.\n\n{markdown(rows)}",
    )
