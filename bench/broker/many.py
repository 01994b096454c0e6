"""10,000 partitions on our broker alone: time to ready, memory, and produce spread over 1,000 beside produce to one."""

import statistics
from pathlib import Path
from typing import Any

from bench.broker.clients import ClientError, confluent, create_topic
from bench.broker.servers import Server, our_broker
from bench.report import Options, Row, Show, Target

READY = "10,000 partitions: time to ready"
RESIDENT = "10,000 partitions: RSS"
SPREAD = "10,000 partitions: produce 1 KB over 1,000 of them / to one"
TARGETS = {
    READY: Target(bound=10, at_least=False, absolute=True),
    RESIDENT: Target(bound=500, at_least=False, absolute=True),
    SPREAD: Target(bound=0.5, at_least=True),
}
PARTITIONS = 10_000
SPREAD_OVER = 1_000
TOPIC_PARTITIONS = 500
RECORDS = 400_000
LINGER_MS = 100
"""Of both, so that a batch to one of 1,000 partitions is more than a record."""


def measure(options: Options, rounds: int, directory: Path, show: Show) -> list[Row]:
    if not any(options.selects(name) for name in TARGETS) or (options.quick and not options.rows):
        return []
    with our_broker(directory) as broker:
        broker.start()
        wide, single = create_topic(broker, SPREAD_OVER), create_topic(broker, 1)
        made = SPREAD_OVER + 1
        while made < PARTITIONS:
            show(f"creating partitions: {made:,} of {PARTITIONS:,}")
            some = min(TOPIC_PARTITIONS, PARTITIONS - made)
            create_topic(broker, some)
            made += some
        show(f"{READY}: starting again")
        broker.process.stop()
        ready_s = broker.start(wide, SPREAD_OVER)
        rates = _rates(options, rounds, broker, wide, single, show)
        resident_mb = broker.resident_bytes / 1e6
    ours, theirs, error = rates
    rows = [
        Row(name=READY, unit="s", ours=ready_s, target=TARGETS[READY]),
        Row(name=RESIDENT, unit="MB", ours=resident_mb, target=TARGETS[RESIDENT]),
        Row(name=SPREAD, unit="records/s", ours=ours, peer="one", theirs=theirs, target=TARGETS[SPREAD], error=error),
    ]
    return [row for row in rows if options.selects(row.name)]


def _rates(
    options: Options, rounds: int, broker: Server, wide: str, single: str, show: Show
) -> tuple[float | None, float | None, str]:
    """Medians over many partitions and to one, or what went wrong."""
    rates: dict[str, list[float]] = {wide: [], single: []}
    asked: dict[str, Any] = {"action": "produce", "record_bytes": 1000, "codec": "none", "acks": "all"}
    asked |= {"records": options.scaled(RECORDS), "linger_ms": LINGER_MS}
    try:
        for number in range(rounds):
            for topic, partitions in ((wide, SPREAD_OVER), (single, 1)):
                show(f"produce to {partitions:,} partitions, round {number + 1} of {rounds}")
                figures = confluent(broker, topic, {**asked, "partitions": partitions})
                rates[topic].append(figures["records_per_s"])
    except ClientError as error:
        return None, None, str(error)
    return statistics.median(rates[wide]), statistics.median(rates[single]), ""
