"""Both servers from start to kill -9: around the throughput rows, their memory and how long they take to be ready."""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.broker import throughput
from bench.broker.clients import confluent, create_topic
from bench.broker.servers import KAFKA, OURS, Server, apache_kafka, our_broker
from bench.broker.workloads import RESIDENT
from bench.report import Options, Row, Show, Target

RESIDENT_STARTED = "RSS when started"
RESIDENT_LOADED = "RSS after the load"
READY = "time to ready"
READY_KILLED = "time to ready after kill -9 with 5 GB of logs"
LOGS_RECORDS = 500_000
LOGS_RECORD_BYTES = 10_000
LOGS_PARTITIONS = 10


def measure(options: Options, rounds: int, directory: Path, show: Show) -> list[Row]:
    """All rows that need both servers."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(our_broker(directory / "ours")),
            stack.enter_context(apache_kafka(directory / "kafka")),
        ]
        for server in servers:
            show(f"starting {server.name}")
            server.start()
        topics = {server.name: create_topic(server, LOGS_PARTITIONS) for server in servers}
        started = {server.name: server.resident_bytes / 1e6 for server in servers}
        rows = throughput.measure(options, rounds, servers, show)
        if rows or options.selects(RESIDENT_LOADED):
            if not rows:
                throughput.warm_up(options, servers, show)
            rows.append(_row(RESIDENT_STARTED, "MB", started))
            loaded = {server.name: server.resident_bytes / 1e6 for server in servers}
            rows.append(_row(RESIDENT_LOADED, "MB", loaded, RESIDENT))
        rows += _restarts(options, rounds, servers, topics, show)
    return [row for row in rows if options.selects(row.name)]


def _restarts(
    options: Options, rounds: int, servers: Sequence[Server], topics: dict[str, str], show: Show
) -> list[Row]:
    rows = []
    if options.selects(READY):
        taken: dict[str, list[float]] = {server.name: [] for server in servers}
        for number in range(rounds):
            for server in throughput.in_turn(servers, number):
                show(f"{READY}: {server.name}, round {number + 1} of {rounds}")
                server.process.stop()
                taken[server.name].append(server.start(topics[server.name], LOGS_PARTITIONS))
        rows.append(_row(READY, "s", {name: statistics.median(values) for name, values in taken.items()}))
    if options.selects(READY_KILLED):
        once = {}
        for server in servers:
            show(f"{READY_KILLED}: filling {server.name}")
            _fill(options, server, topics[server.name])
            server.process.kill()
            show(f"{READY_KILLED}: {server.name}")
            once[server.name] = server.start(topics[server.name], LOGS_PARTITIONS)
        rows.append(_row(READY_KILLED, "s", once))
    return rows


def _fill(options: Options, server: Server, topic: str) -> None:
    asked = {"action": "produce", "records": options.scaled(LOGS_RECORDS), "record_bytes": LOGS_RECORD_BYTES}
    confluent(server, topic, {**asked, "codec": "none", "acks": "all", "partitions": LOGS_PARTITIONS})


def _row(name: str, unit: str, values: dict[str, float], target: Target | None = None) -> Row:
    return Row(name=name, unit=unit, ours=values[OURS], peer=KAFKA, theirs=values[KAFKA], target=target)
