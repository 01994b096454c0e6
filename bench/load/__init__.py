"""Our load beside Spark 4.0's own Kafka source on this machine, both from our broker.

A topic of log lines, as Avro records or as bytes, is written to files by each in turn, whole. Both run on local[2] in
a driver of their own; the clock starts when its Spark session has run a first job.
"""

import shutil
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import httpx

from bench.broker.clients import confluent, create_topic, delete_topic
from bench.broker.servers import Server, our_broker
from bench.lines import LOG_EVENTS, LOG_LINES
from bench.load.drivers import LoadRun, RunError, registry_of, run_driver
from bench.load.plans import measure_plans
from bench.load.rows import AVRO, PROGRAMS, Comparison, comparisons
from bench.load.small import measure_small
from bench.page import machine, write_part
from bench.processes import ended
from bench.report import Options, Row, Show, markdown
from pipeline.cli.demo.access_log import sample_schema

ROUNDS = 3
LINGER_MS = 100


def measure(options: Options, show: Show) -> list[Row]:
    """All selected rows."""
    found = comparisons(options)
    rounds = options.rounds_or(ROUNDS)
    rows: list[Row] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pipeline-bench-")))
        show("starting broker and registry")
        server = stack.enter_context(our_broker(directory / "broker"))
        server.start()
        registry = stack.enter_context(ended(registry_of(server, directory)))
        registry.launch()
        registry.wait_for_port()
        url = f"http://127.0.0.1:{registry.port}"
        for topic in dict.fromkeys(each.topic for each in found):
            group = [each for each in found if each.topic == topic]
            rows += _measure_topic(group, server, url, rounds, directory / "run", show)
        rows += measure_small(options, server, rounds, directory / "small", show)
        rows += measure_plans(options, server, directory / "plans", show)
    return rows


def publish(rows: list[Row], options: Options) -> None:
    """The table of a full run goes to docs/benchmarks.md."""
    rounds = options.rounds_or(ROUNDS)
    write_part(
        "load",
        f"Measured on {machine()}; medians of {rounds} rounds, {options.scale:.0%} of records.\n\n{markdown(rows)}",
    )


def _measure_topic(
    group: list[Comparison], server: Server, registry: str, rounds: int, directory: Path, show: Show
) -> list[Row]:
    """The rows about one topic. What failed once is not run again, and has no figures."""
    topic = group[0].topic
    show(f"filling a topic: {topic.name}")
    name = create_topic(server, topic.partitions)
    schema_id = _register(registry, name) if topic.values == AVRO else 0
    payloads = LOG_EVENTS if topic.values == AVRO else LOG_LINES
    asked = {"action": "produce", "payloads": payloads, "records": topic.records, "codec": topic.codec}
    asked |= {"partitions": topic.partitions, "acks": "all", "linger_ms": LINGER_MS, "schema_id": schema_id}
    confluent(server, name, asked)
    done: dict[tuple[str, str], list[LoadRun]] = defaultdict(list)
    errors: dict[tuple[str, str], str] = {}
    wanted = [(program, each.file_format) for each in group for program in PROGRAMS]
    for number in range(rounds):
        for program, file_format in [*wanted[number % len(wanted) :], *wanted[: number % len(wanted)]]:
            key = program, file_format
            if key in errors:
                continue
            show(f"{topic.name}, {file_format}, {program}: round {number + 1} of {rounds}")
            try:
                done[key].append(run_driver(program, topic, file_format, (server.bootstrap, name, registry), directory))
            except RunError as error:
                errors[key] = str(error)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
    delete_topic(server, name)
    return [row for each in group for row in each.rows(done, errors)]


def _register(registry: str, topic: str) -> int:
    answer = httpx.post(f"{registry}/subjects/{topic}-value/versions", json={"schema": sample_schema()}, timeout=30)
    return int(answer.raise_for_status().json()["id"])
