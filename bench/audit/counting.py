"""Produce throughput of a broker that counts for the audit beside one that does not (`datacenter` set or not).

Pairs of runs take turns; each row is the median of the ratios within pairs. A broker's reports go to its own `_audit`.
"""

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.broker.clients import ClientError, create_topic, delete_topic, records_per_s
from bench.broker.servers import Server, our_broker
from bench.broker.workloads import CONFLUENT, RECORDS, Data, Workload
from bench.report import Options, Row, Show, Target

PAIRS = 20
PEER = "not counting"
LEAST = Target(bound=0.97, at_least=True)
MOST = Target(bound=1.03, at_least=False)
BATCH_BYTES = (1024, 4096, 16_384, None)
"""None: of the client's default, as large as they get."""
SMALLEST = {100: 1024, 1000: 4096}
"""Batches of a client that hardly collects anything."""
WARM_UP_RECORDS = 50_000
RECORDS_OF_SMALL_BATCHES = 0.3


def measure(options: Options, show: Show) -> list[Row]:
    """A row of throughput and one of CPU time for each size of records and batches."""
    works = [work for work in _works(options) if options.selects(_name(work)) or options.selects(_cpu_name(work))]
    if not works:
        return []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pipeline-bench-")))
        servers = {
            counts: stack.enter_context(our_broker(directory / name, **settings))
            for counts, name, settings in (
                (True, "counting", {"datacenter": "bench", "audit.interval.ms": "10000"}),
                (False, "plain", {}),
            )
        }
        for server in servers.values():
            server.start()
            _measure(server, replace(works[0], records=WARM_UP_RECORDS))
        return [row for work in works for row in _rows(options, work, servers, show)]


def _works(options: Options) -> list[Workload]:
    found = []
    for record_bytes, smallest in SMALLEST.items():
        for batch_bytes in BATCH_BYTES:
            if batch_bytes is not None and batch_bytes < smallest:
                continue
            share = RECORDS_OF_SMALL_BATCHES if batch_bytes is not None and batch_bytes < 16_384 else 1
            records = options.scaled(int(RECORDS[record_bytes] * share), least=20_000)
            data = Data(record_bytes=record_bytes)
            found.append(
                Workload(action="produce", client=CONFLUENT, data=data, records=records, batch_bytes=batch_bytes)
            )
    return found


def _name(work: Workload) -> str:
    return f"counting: {work.name}"


def _cpu_name(work: Workload) -> str:
    return f"CPU counting: {work.name}"


def _rows(options: Options, work: Workload, servers: dict[bool, Server], show: Show) -> list[Row]:
    rates: dict[bool, list[float]] = {True: [], False: []}
    costs: dict[bool, list[float]] = {True: [], False: []}
    error = ""
    pairs = options.rounds_or(PAIRS)
    try:
        for number in range(pairs):
            for counts in (True, False) if number % 2 else (False, True):
                show(f"{_name(work)}: {'counting' if counts else PEER}, pair {number + 1} of {pairs}")
                rate, cost = _measure(servers[counts], work)
                rates[counts].append(rate)
                costs[counts].append(cost)
    except ClientError as failure:
        error = str(failure)
    rows = []
    for name, unit, values, target in (
        (_name(work), "records/s", rates, LEAST),
        (_cpu_name(work), "s/GB", costs, MOST),
    ):
        if options.selects(name):
            ratios = [ours / theirs for ours, theirs in zip(values[True], values[False], strict=False)]
            rows.append(
                Row(
                    name=name,
                    unit=unit,
                    ours=median(values[True]) if ratios else None,
                    peer=PEER,
                    theirs=median(values[False]) if ratios else None,
                    ratio_of_rounds=median(ratios) if ratios else None,
                    target=target,
                    error=error,
                )
            )
    return rows


def _measure(server: Server, work: Workload) -> tuple[float, float]:
    """Records per second, and CPU seconds of the broker per GB."""
    topic = create_topic(server, 1)
    server.wait_for_partitions(topic, 1)
    before_s = server.cpu_s
    rate = records_per_s(server, topic, work)
    cost_s = (server.cpu_s - before_s) / work.gigabytes
    delete_topic(server, topic)
    return rate, cost_s
