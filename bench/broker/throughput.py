"""Throughput, CPU and latency rows: every workload in rounds, each round on both servers, the first one in turn."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from bench.broker.clients import (
    ClientError,
    create_topic,
    delete_topic,
    latencies_ms,
    records_per_s,
)
from bench.broker.servers import KAFKA, OURS, Server
from bench.broker.workloads import (
    CLIENTS,
    CONFLUENT,
    CPU,
    LATENCY_P99,
    LATENCY_RATES,
    LATENCY_S,
    Data,
    Workload,
    groups,
)
from bench.report import Options, Row, Show, Target, median_or_none

WARM_UP_RECORDS = 200_000

_Turn = TypeVar("_Turn")


class Figures:
    """What was measured, by row and server; and why something was not."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.errors: dict[tuple[str, str], str] = {}

    def row(self, name: str, unit: str, target: Target | None) -> Row:
        errors = [f"{server}: {self.errors[name, server]}" for server in (OURS, KAFKA) if (name, server) in self.errors]
        ours, theirs = (median_or_none(self.values[name, server]) for server in (OURS, KAFKA))
        return Row(name=name, unit=unit, ours=ours, peer=KAFKA, theirs=theirs, target=target, error="; ".join(errors))


def is_cpu_row(row: Row) -> bool:
    return row.name.startswith("CPU ")


def in_turn(servers: Sequence[_Turn], number: int) -> list[_Turn]:
    """Another one is first each round."""
    return [*servers[number % len(servers) :], *servers[: number % len(servers)]]


def warm_up(options: Options, servers: Sequence[Server], show: Show) -> None:
    """Both have compiled and loaded what they need before anything counts."""
    base = Workload(action="produce", client=CONFLUENT, data=Data(record_bytes=1000, codec="lz4"), records=1)
    for server in servers:
        topic = create_topic(server, 1)
        for client in CLIENTS:
            show(f"warming up {server.name} with {client}")
            work = replace(base, client=client, records=options.scaled(WARM_UP_RECORDS, least=1000))
            records_per_s(server, topic, work)
        records_per_s(server, topic, replace(base, action="consume", records=options.scaled(WARM_UP_RECORDS)))
        delete_topic(server, topic)


def measure(options: Options, rounds: int, servers: Sequence[Server], show: Show) -> list[Row]:
    found = groups(options)
    if found:
        warm_up(options, servers, show)
    rows: list[Row] = []
    for number, group in enumerate(found, 1):
        place = partial(show_place, show, f"[{number}/{len(found)}]")
        rows += measure_group(options, group, rounds, servers, place)
    return rows + measure_latencies(options, rounds, servers, show)


def show_place(show: Show, place: str, doing: str) -> None:
    show(f"{place} {doing}")


def measure_group(
    options: Options,
    group: list[Workload],
    rounds: int,
    servers: Sequence[Server],
    show: Show,
    *,
    cpu_target: Target | None = CPU,
) -> list[Row]:
    """Workloads about the same data: what is consumed was filled in once, what is produced goes to a new topic."""
    figures = Figures()
    filled = {server.name: _fill(server, group, show) for server in servers}
    for round_number in range(rounds):
        for work in group:
            for server in in_turn(servers, round_number):
                if (work.name, server.name) not in figures.errors:
                    show(f"{work.name}: {server.name}, round {round_number + 1} of {rounds}")
                    _measure_once(server, filled[server.name], work, figures)
    for server in servers:
        if filled[server.name]:
            delete_topic(server, filled[server.name])
    rows = []
    for work in group:
        if options.selects(work.name):
            rows.append(figures.row(work.name, "records/s", work.target))
        if options.selects(work.cpu_name):
            rows.append(figures.row(work.cpu_name, "s/GB", cpu_target))
    return rows


def _fill(server: Server, group: list[Workload], show: Show) -> str:
    consuming = [work for work in group if work.action == "consume"]
    if not consuming:
        return ""
    show(f"filling {server.name} with {consuming[0].data.name}")
    topic = create_topic(server, consuming[0].data.partitions)
    records_per_s(server, topic, replace(consuming[0], action="produce", client=CONFLUENT))
    return topic


def _measure_once(server: Server, filled: str, work: Workload, figures: Figures) -> None:
    topic = filled if work.action == "consume" else create_topic(server, work.data.partitions)
    server.wait_for_partitions(topic, work.data.partitions)
    before_s = server.cpu_s
    try:
        figures.values[work.name, server.name].append(records_per_s(server, topic, work))
        figures.values[work.cpu_name, server.name].append((server.cpu_s - before_s) / work.gigabytes)
    except ClientError as error:
        figures.errors[work.name, server.name] = figures.errors[work.cpu_name, server.name] = str(error)
    if work.action == "produce":
        delete_topic(server, topic)


def measure_latencies(options: Options, rounds: int, servers: Sequence[Server], show: Show) -> list[Row]:
    rows = []
    for rate in LATENCY_RATES:
        names = {share: f"latency {share} at {rate:,} records/s" for share in ("p50", "p99", "p99.9")}
        if not any(options.selects(name) for name in names.values()):
            continue
        figures = Figures()
        for round_number in range(-1, rounds):  # the first one warms up
            for server in in_turn(servers, round_number):
                show(f"latency at {rate:,} records/s: {server.name}, round {round_number + 1} of {rounds}")
                topic = create_topic(server, 1)
                try:
                    found = latencies_ms(server, topic, rate, options.scaled(rate * LATENCY_S, least=2 * rate))
                    for share, name in names.items() if round_number >= 0 else ():
                        figures.values[name, server.name].append(found[share])
                except ClientError as error:
                    figures.errors.update(dict.fromkeys(((name, server.name) for name in names.values()), str(error)))
                delete_topic(server, topic)
        for share, name in names.items():
            if options.selects(name):
                rows.append(figures.row(name, "ms", LATENCY_P99 if share == "p99" else None))
    return rows
