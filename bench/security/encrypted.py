"""Produce and consume at 1 KB over SSL and SASL_SSL: both servers, the same client, in turn."""

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from bench.broker.clients import ClientError, delete_topic
from bench.broker.servers import KAFKA, OURS, Server, apache_kafka, our_broker
from bench.broker.throughput import in_turn
from bench.broker.workloads import CONFLUENT, RECORDS, Data, Workload
from bench.report import Options, Row, Show, Target, median_or_none
from bench.security.listeners import PROTOCOLS, Site, filled_topic, measure_once, new_ports, started

TARGET = Target(bound=1.0, at_least=True)
WARM_UP_RECORDS = 50_000
LEAST_RECORDS = 100_000
"""Fewer take too short a time to compare, also in a quick run."""


def _name(work: Workload, protocol: str) -> str:
    return f"{work.action} 1 KB, {protocol}"


def _cpu_name(work: Workload, protocol: str) -> str:
    return f"CPU {_name(work, protocol)}"


def works(options: Options) -> list[tuple[Workload, str]]:
    """The selected workloads, each with its protocol."""
    records = options.scaled(RECORDS[1000], least=LEAST_RECORDS)
    found = [
        (Workload(action=action, client=CONFLUENT, data=Data(record_bytes=1000), records=records), protocol)
        for protocol in PROTOCOLS
        for action in ("produce", "consume")
    ]
    return [each for each in found if options.selects(_name(*each)) or options.selects(_cpu_name(*each))]


def measure(options: Options, rounds: int, directory: Path, show: Show) -> list[Row]:
    """All selected rows."""
    selected = works(options)
    if not selected:
        return []
    site = Site.made(directory)
    ports = {OURS: new_ports(), KAFKA: new_ports()}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(our_broker(directory / "ours", ports[OURS], **site.of_server())),
            stack.enter_context(apache_kafka(directory / "kafka", site.of_apache_kafka(), listeners=ports[KAFKA])),
        ]
        for server in servers:
            show(f"starting {server.name}")
            started(server)
        return [
            row
            for work, protocol in selected
            for row in _rows(options, work, protocol, rounds, servers, ports, site, show)
        ]


def _rows(
    options: Options,
    work: Workload,
    protocol: str,
    rounds: int,
    servers: list[Server],
    ports: dict[str, dict[str, int]],
    site: Site,
    show: Show,
) -> list[Row]:
    rates: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, list[float]] = defaultdict(list)
    error = ""
    filled = {server.name: filled_topic(server, work) if work.action == "consume" else "" for server in servers}
    try:
        for number in range(-1, rounds):  # the first one warms up
            for server in in_turn(servers, number):
                show(f"{_name(work, protocol)}: {server.name}, round {number + 1} of {rounds}")
                bootstrap = f"127.0.0.1:{ports[server.name][protocol]}"
                rate, cost = measure_once(server, work, bootstrap, site.settings_of(protocol), filled[server.name])
                if number >= 0:
                    rates[server.name].append(rate)
                    costs[server.name].append(cost)
    except ClientError as failure:
        error = str(failure)
    for server in servers:
        if filled[server.name]:
            delete_topic(server, filled[server.name])
    rows = []
    for name, unit, values, target in (
        (_name(work, protocol), "records/s", rates, TARGET),
        (_cpu_name(work, protocol), "s/GB", costs, None),
    ):
        if options.selects(name):
            ours, theirs = median_or_none(values[OURS]), median_or_none(values[KAFKA])
            rows.append(Row(name=name, unit=unit, ours=ours, peer=KAFKA, theirs=theirs, target=target, error=error))
    return rows
