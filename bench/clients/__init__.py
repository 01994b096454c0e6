"""Our client beside confluent-kafka, aiokafka, kafka-python and kcat, over the same broker.

Each measurement is a process of its own; rounds take turns between the clients. Ratios are of one round, and the median
of the rounds counts.
"""

import tempfile
from itertools import product
from pathlib import Path

from bench.broker.servers import apache_kafka, our_broker
from bench.clients import rows
from bench.clients.plans import CODECS, CONSUME, PRODUCE, SIZES, Data
from bench.page import machine, write_part
from bench.report import Options, Row, Show, markdown

ACTIONS = (PRODUCE, CONSUME)


def measure(options: Options, show: Show) -> list[Row]:
    """All selected rows: over our broker, and those with targets over Apache Kafka too."""
    found: list[Row] = []
    sizes = (100,) if options.quick else tuple(SIZES)
    codecs = ("none",) if options.quick else CODECS
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as directory:
        with our_broker(Path(directory, "ours")) as server:
            server.start()
            for action, size, codec in product(ACTIONS, sizes, codecs):
                found += rows.throughput(options, server, action, Data(record_bytes=size, codec=codec), show)
            for action in ACTIONS:
                found += rows.memory(options, server, action, show)
        if options.quick or options.alone:
            return found
        with apache_kafka(Path(directory, "kafka")) as server:
            server.start()
            for action, size in product(ACTIONS, sizes):
                data = Data(record_bytes=size, codec="none")
                found += rows.throughput(options, server, action, data, show, all_pairs=False)
    return found


def publish(found: list[Row], options: Options) -> None:
    """The table of a full run goes to docs/benchmarks.md."""
    rounds = options.rounds_or(rows.ROUNDS)
    write_part(
        "clients",
        f"Measured on {machine()}; {rounds} rounds, {options.scale:.0%} of the records.\n\n{markdown(found)}",
    )
