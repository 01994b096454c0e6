"""Delay of a record through a mirror: from the producer at the source to a consumer at the destination.

A topic without backlog gets records at a steady rate while the mirror runs. One client sends and receives, so that both
times are those of one clock.
"""

import shutil
from collections import defaultdict
from pathlib import Path
from statistics import median

import trio

from bench.broker.clients import ClientError, confluent, create_topic, delete_topic
from bench.broker.servers import KAFKA, Server, apache_kafka, our_broker
from bench.mirror.flows import FROM_KAFKA, OWN, TUNED, Data, Flow
from bench.mirror.mirrors import mirror_of, replica_of
from bench.mirror.runs import CopyError, wait_for_records
from bench.processes import ended
from bench.report import Options, Row, Show, Target

RATE = 10_000
SECONDS = 30
RECORD_BYTES = 200
LINGER_MS = 5
"""The default of Apache Kafka's producer since 4.0."""
SHARES = ("p50", "p99")
P99 = Target(bound=100, at_least=False, absolute=True)
PEERS: dict[Flow, Flow | None] = {FROM_KAFKA: TUNED, OWN: TUNED}


def rows_of(options: Options) -> dict[str, tuple[Flow, Flow | None, str]]:
    """The selected rows: a flow of ours, its peer, and which delay."""
    flows = {OWN: None} if options.alone else PEERS
    found = {
        f"delay at {RATE:,} records/s, {flow.name}: {share}": (flow, peer, share)
        for flow, peer in flows.items()
        for share in SHARES
    }
    return {name: row for name, row in found.items() if options.selects(name)}


def measure_delays(options: Options, sources: dict[str, Server], rounds: int, directory: Path, show: Show) -> list[Row]:
    """The selected rows. `sources` run."""
    rows = rows_of(options)
    flows = list(dict.fromkeys(flow for ours, peer, _ in rows.values() for flow in (ours, peer) if flow is not None))
    taken: dict[Flow, list[dict[str, float]]] = defaultdict(list)
    errors: dict[Flow, str] = {}
    for number in range(rounds):
        for flow in flows:
            show(f"delay, {flow.name}: round {number + 1} of {rounds}")
            try:
                taken[flow].append(_run(flow, options, sources[flow.source], directory))
            except (ClientError, CopyError, RuntimeError, TimeoutError) as error:
                errors[flow] = str(error)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
    found = []
    for name, (flow, peer, share) in rows.items():
        found.append(
            Row(
                name=name,
                unit="ms",
                ours=None if flow in errors else median(each[share] for each in taken[flow]),
                peer="" if peer is None else peer.name,
                theirs=None if peer is None or peer in errors else median(each[share] for each in taken[peer]),
                target=P99 if share == "p99" else None,
                error="; ".join(f"{each.name}: {errors[each]}" for each in (flow, peer) if each in errors),
            )
        )
    return found


def _run(flow: Flow, options: Options, source: Server, directory: Path) -> dict[str, float]:
    """The delays of one run. Raises ClientError, CopyError."""
    data = Data(codec="none", partitions=4, records=RATE * SECONDS if not options.quick else RATE * 5)
    first = {"records": data.partitions, "partitions": data.partitions, "codec": data.codec, "acks": "all"}
    begin = {"action": "produce", "record_bytes": RECORD_BYTES, **first}
    opened = apache_kafka if flow.destination == KAFKA else our_broker
    directory.mkdir(parents=True)
    topic = create_topic(source, data.partitions)
    try:
        with opened(directory / "destination") as destination:
            destination.start()
            mirror = mirror_of(flow, data, topic, (source.bootstrap, destination.bootstrap), directory)
            with ended(mirror):
                confluent(source, topic, begin)
                trio.run(wait_for_records, mirror, destination, replica_of(flow, topic), data, data.partitions)
                asked = {
                    **first,
                    "action": "delay",
                    "destination": destination.bootstrap,
                    "replica": replica_of(flow, topic),
                    "begins_at": 1,
                    "rate": RATE,
                    "records": data.records,
                    "record_bytes": RECORD_BYTES,
                    "linger_ms": LINGER_MS,
                }
                return confluent(source, topic, asked)
    finally:
        delete_topic(source, topic)
