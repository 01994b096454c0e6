"""A topic whose values must bear a registered schema id beside one without a contract: our broker, the same client.

Pairs take turns within a round. The registry answers one id from memory; after the first batch nothing is asked.
"""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from bench.broker.clients import ClientError, asked_of, confluent, create_topic, delete_topic
from bench.broker.servers import Server, our_broker
from bench.broker.workloads import CONFLUENT, RECORDS, Data, Workload
from bench.report import Options, Row, Show, Target, median_or_none
from tests.support.http_answers import as_json, http_server

PEER = "no contract"
SCHEMA_ID = 1
VALIDATION = {"confluent.value.schema.validation": "true"}
BY_RECORD = {
    **VALIDATION,
    "confluent.value.subject.name.strategy": "io.confluent.kafka.serializers.subject.RecordNameStrategy",
}
"""The topics of a benchmark have names of their own, and this strategy one subject for all."""
SUBJECT = "Line"
TARGETS = {"none": 0.85, "lz4": 0.7}
SMALL_BATCH_BYTES = 16 * 1024
WARM_UP_RECORDS = 50_000
ROUNDS_OF_PAIRS = 5
LEAST_RECORDS = 100_000
"""Fewer take too short a time to compare, also in a quick run."""


def works(options: Options) -> list[Workload]:
    """The selected pairs: large batches, as librdkafka makes them, and those of 16 KB of Java's default."""
    found = []
    for codec, bound in TARGETS.items():
        for batch_bytes in (None, SMALL_BATCH_BYTES):
            records = options.scaled(RECORDS[1000], least=LEAST_RECORDS)
            work = Workload(
                action="produce",
                client=CONFLUENT,
                data=Data(record_bytes=1000, codec=codec),
                records=records,
                batch_bytes=batch_bytes,
                target=Target(bound=bound, at_least=True),
            )
            if options.selects(_name(work)) or options.selects(_cpu_name(work)):
                found.append(work)
    return found


def _name(work: Workload) -> str:
    return f"contract: {work.name}"


def _cpu_name(work: Workload) -> str:
    return f"CPU contract: {work.name}"


def measure(options: Options, rounds: int, directory: Path, show: Show) -> list[Row]:
    """All selected rows."""
    selected = works(options)
    if not selected:
        return []
    answers = {
        f"/schemas/ids/{SCHEMA_ID}": as_json({"schema": f'{{"type": "record", "name": "{SUBJECT}", "fields": []}}'}),
        f"/schemas/ids/{SCHEMA_ID}/versions": as_json([{"subject": SUBJECT, "version": 1}]),
    }
    with http_server(answers) as url, our_broker(directory, **{"confluent.schema.registry.url": url}) as server:
        server.start()
        return [row for work in selected for row in _rows(options, work, rounds, server, show)]


def _rows(options: Options, work: Workload, rounds: int, server: Server, show: Show) -> list[Row]:
    rates: dict[bool, list[float]] = defaultdict(list)
    costs: dict[bool, list[float]] = defaultdict(list)
    error = ""
    try:
        for has_contract in (True, False):
            _measure(server, replace(work, records=WARM_UP_RECORDS), has_contract=has_contract)
        for number in range(rounds):
            for has_contract in (True, False) if number % 2 else (False, True):
                kind = "with" if has_contract else "without"
                show(f"{_name(work)}: {kind} a contract, round {number + 1} of {rounds}")
                rate, cost = _measure(server, work, has_contract=has_contract)
                rates[has_contract].append(rate)
                costs[has_contract].append(cost)
    except ClientError as failure:
        error = str(failure)
    rows = []
    for name, unit, values, target in (
        (_name(work), "records/s", rates, work.target),
        (_cpu_name(work), "s/GB", costs, None),
    ):
        if options.selects(name):
            ours, theirs = median_or_none(values[True]), median_or_none(values[False])
            rows.append(Row(name=name, unit=unit, ours=ours, peer=PEER, theirs=theirs, target=target, error=error))
    return rows


def _measure(server: Server, work: Workload, *, has_contract: bool) -> tuple[float, float]:
    """Records per second, and CPU seconds of the broker per GB."""
    topic = create_topic(server, 1, BY_RECORD if has_contract else {})
    server.wait_for_partitions(topic, 1)
    before_s = server.cpu_s
    rate = confluent(server, topic, {**asked_of(work), "frame_of": SCHEMA_ID})["records_per_s"]
    cost = (server.cpu_s - before_s) / work.gigabytes
    delete_topic(server, topic)
    return rate, cost
