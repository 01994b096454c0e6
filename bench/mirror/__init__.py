"""Our mirror beside MirrorMaker 2 on this machine, from Apache Kafka 4.1 and from our broker.

A topic of log lines is copied by each mirror in turn, whole, into a destination that was started for this run alone.
Both kinds of source run all the time, filled by the same client. A mirror's process starts when its run does.
"""

import shutil
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from bench.broker.clients import confluent, create_topic, delete_topic
from bench.broker.servers import KAFKA, OURS, Server, apache_kafka, our_broker
from bench.lines import LOG_LINES
from bench.mirror.delays import measure_delays, rows_of
from bench.mirror.flows import Comparison, Copied, Data, Flow, comparisons, flows_of
from bench.mirror.many import measure_many
from bench.mirror.runs import CopyError, run_flow
from bench.page import machine, write_part
from bench.report import Options, Row, Show, markdown

ROUNDS = 3
LINGER_MS = 100


def measure(options: Options, show: Show) -> list[Row]:
    """All selected rows."""
    found = comparisons(options)
    rounds = options.rounds_or(ROUNDS)
    rows: list[Row] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pipeline-bench-")))
        needed = {flow.source for group in found for flow in flows_of(group)}
        delays = [flow for ours, peer, _ in rows_of(options).values() for flow in (ours, peer) if flow is not None]
        needed |= {flow.source for flow in delays}
        sources: dict[str, Server] = {}
        for name, opened in ((OURS, our_broker), (KAFKA, apache_kafka)):
            if name in needed:
                show(f"starting {name}")
                sources[name] = stack.enter_context(opened(directory / name.replace(" ", "-")))
                sources[name].start()
        for group in found:
            rows += _measure_group(group, sources, rounds, directory / "run", show)
        rows += measure_delays(options, sources, rounds, directory / "run", show)
        rows += measure_many(options, directory / "many", show)
    return rows


def publish(rows: list[Row], options: Options) -> None:
    """The table of a full run goes to docs/benchmarks.md."""
    rounds = options.rounds_or(ROUNDS)
    write_part(
        "mirror",
        f"Measured on {machine()}; medians of {rounds} rounds, {options.scale:.0%} of records.\n\n{markdown(rows)}",
    )


def _measure_group(
    group: list[Comparison], sources: dict[str, Server], rounds: int, directory: Path, show: Show
) -> list[Row]:
    """The rows about the same data. A flow that failed once is not run again, and has no figures."""
    data, flows = group[0].data, flows_of(group)
    topics = {name: _fill(sources[name], data, show) for name in sorted({flow.source for flow in flows})}
    copied: dict[Flow, list[Copied]] = defaultdict(list)
    errors: dict[Flow, str] = {}
    for number in range(rounds):
        for flow in [*flows[number % len(flows) :], *flows[: number % len(flows)]]:
            if flow in errors:
                continue
            show(f"{data.name}, {flow.name}: round {number + 1} of {rounds}")
            try:
                copied[flow].append(run_flow(flow, data, sources[flow.source], topics[flow.source], directory))
            except (CopyError, RuntimeError, TimeoutError) as error:
                errors[flow] = str(error)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
    for name, topic in topics.items():
        delete_topic(sources[name], topic)
    return [each.row(copied, errors) for each in group]


def _fill(server: Server, data: Data, show: Show) -> str:
    """A new topic of log lines; its name."""
    show(f"filling {server.name} with {data.name}")
    topic = create_topic(server, data.partitions)
    asked = {"action": "produce", "payloads": LOG_LINES, "records": data.records, "codec": data.codec}
    confluent(server, topic, {**asked, "partitions": data.partitions, "acks": "all", "linger_ms": LINGER_MS})
    return topic
