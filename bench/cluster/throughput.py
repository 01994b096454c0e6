"""Throughput rows: the workloads of `bench.broker` with three replicas, and two sizes of batches."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from bench.broker.servers import Server
from bench.broker.throughput import measure_group, show_place, warm_up
from bench.broker.workloads import CLIENTS, CONFLUENT, Data, Workload
from bench.report import Options, Row, Show

RECORDS = {100: 1_000_000, 1000: 300_000}
LARGE_BATCH_BYTES = 128 * 1024


def groups(options: Options) -> list[list[Workload]]:
    """The selected workloads, by the data they are about. A quick run has one size of records and batches."""
    found = []
    for partitions, size in product((1, 10), RECORDS):
        if options.quick and size == 100:
            continue
        data = Data(record_bytes=size, partitions=partitions)
        records = options.scaled(RECORDS[size], least=1000)
        base = Workload(action="produce", client=CONFLUENT, data=data, records=records)
        batches = (None,) if options.quick else (None, LARGE_BATCH_BYTES)
        group = [replace(base, client=client, batch_bytes=batch) for client, batch in product(CLIENTS, batches)]
        group += [replace(base, action="consume", client=client) for client in CLIENTS]
        group = [work for work in group if options.selects(work.name) or options.selects(work.cpu_name)]
        if group:
            found.append(group)
    return found


def measure(options: Options, rounds: int, servers: Sequence[Server], show: Show) -> list[Row]:
    found = groups(options)
    if found:
        warm_up(options, servers, show)
    rows: list[Row] = []
    for number, group in enumerate(found, 1):
        place = partial(show_place, show, f"[{number}/{len(found)}]")
        rows += measure_group(options, group, rounds, servers, place, cpu_target=None)
    return rows
