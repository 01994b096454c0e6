"""The experiment of the 2011 paper, section 5: one producer, then one consumer, 200 B messages; four systems.

One system runs at a time. Messages are persistent; producers ask for no acknowledgements and are done when the server
has all messages. Kafka's client sends batches of 1 and of 50; the others have none. Consumers have about the same
prefetch, 1000 messages or 200 KB, and acknowledge automatically. Each system is used through its own Java client.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.broker.servers import KAFKA, OURS
from bench.page import FIGURES, SMALL_RUNS, machine, write_part
from bench.paper.figures import draw
from bench.paper.servers import ACTIVEMQ, RABBITMQ, System, compiled_clients, running
from bench.processes import disk_bytes
from bench.report import Options, Row, Show, Target, markdown
from tests.support.jars import java

MESSAGES = 10_000_000
MESSAGE_BYTES = 200
BATCHED = 50
CLIENT_DEADLINE_S = 3600
PRODUCE_TARGET = Target(bound=2, at_least=True)
CONSUME_TARGET = Target(bound=4, at_least=True)
OVERHEAD_TARGET = Target(bound=9, at_least=False, absolute=True)

Line = list[tuple[float, float]]
"""(MB so far, messages per second since the point before)."""


@dataclass(slots=True)
class Figures:
    """What was found about one system: by what was done, messages per second in all and over time; bytes on disk."""

    rates: dict[str, float] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)
    overhead_bytes: dict[int, float] = field(default_factory=dict)
    written_bytes: int = 0


def measure(options: Options, show: Show) -> list[Row]:
    """Runs the systems one after the other, draws the figures and compares. There are no rounds: runs are long."""
    messages = options.scaled(MESSAGES, least=1000)
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="pipeline-paper-") as temporary:
        classes = compiled_clients(Path(temporary, "classes"))
        for name in (OURS, KAFKA, RABBITMQ, ACTIVEMQ):
            show(f"starting {name}")
            with running(name, Path(temporary, name.replace(" ", "-"))) as system:
                found[name] = _experiment(system, classes, messages, show)
    directory = FIGURES if options.is_full else SMALL_RUNS
    produced = {f"{name}, {what}": line for name, each in found.items() for what, line in each.lines.items()}
    draw(
        directory / "figure-4-produce.png", "Producer", {key: line for key, line in produced.items() if "batch" in key}
    )
    draw(directory / "figure-5-consume.png", "Consumer", {name: each.lines["consume"] for name, each in found.items()})
    return [row for row in _rows(found) if options.selects(row.name)]


def publish(rows: list[Row], options: Options) -> None:
    """The table of a full run and its figures go to docs/benchmarks.md."""
    text = f"""Measured on {machine()}; {options.scaled(MESSAGES):,} messages of {MESSAGE_BYTES} B.

![Producer](benchmarks/figure-4-produce.png)

![Consumer](benchmarks/figure-5-consume.png)

{markdown(rows)}"""
    write_part("paper", text)


def _experiment(system: System, classes: Path, messages: int, show: Show) -> Figures:
    found = Figures()
    batches = (1, BATCHED) if system.server is not None else (1,)
    for batch in batches:
        what = f"batch of {batch}"
        show(f"{system.name}: produce, {what}")
        destination = system.destination(f"bench-{batch}")
        before = disk_bytes(system.data, system.pattern)
        found.rates[what], found.lines[what] = _run(system, classes, "produce", destination, messages, batch)
        grown = disk_bytes(system.data, system.pattern) - before
        found.overhead_bytes[batch] = grown / messages - MESSAGE_BYTES
    show(f"{system.name}: consume")
    written = _written_bytes(system.process.pid)
    found.rates["consume"], found.lines["consume"] = _run(system, classes, "consume", destination, messages, 1)
    found.written_bytes = _written_bytes(system.process.pid) - written
    return found


def _run(system: System, classes: Path, action: str, destination: str, messages: int, batch: int) -> tuple[float, Line]:
    """One client from start to end: messages per second in all and over time."""
    arguments = [action, str(system.process.port), destination, str(messages), str(MESSAGE_BYTES), str(batch)]
    command = [java(), "-Xmx1G", "-cp", f"{classes}{os.pathsep}{system.client_jars}", system.client, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_DEADLINE_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{system.client} {action} failed:\n{done.stderr[-2000:]}")
    points = [(0, 0)] + [(int(seen), int(taken)) for seen, taken in map(str.split, done.stdout.splitlines())]
    line = [
        (seen * MESSAGE_BYTES / 1e6, (seen - seen_before) / (taken - taken_before) * 1e9)
        for (seen_before, taken_before), (seen, taken) in pairwise(points)
        if seen > seen_before
    ]
    return messages / (points[-1][1] / 1e9), line


def _written_bytes(pid: int) -> int:
    """What a process has written to files so far, wherever it lies by now (proc(5))."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines())
    return int(fields["write_bytes"])


def _rows(found: Mapping[str, Figures]) -> list[Row]:
    ours = found[OURS]
    batched, single = f"batch of {BATCHED}", "batch of 1"
    rows = []
    for what in (batched, single, "consume"):
        name = what if what == "consume" else f"produce, {what}"
        for peer in (RABBITMQ, ACTIVEMQ, KAFKA):
            target = None
            if peer == RABBITMQ and what != single:
                target = CONSUME_TARGET if what == "consume" else PRODUCE_TARGET
            theirs = found[peer].rates.get(what, found[peer].rates[single])
            rows.append(
                Row(name=name, unit="messages/s", ours=ours.rates[what], peer=peer, theirs=theirs, target=target)
            )
    for batch in (BATCHED, 1):
        for peer in (RABBITMQ, ACTIVEMQ, KAFKA):
            theirs = found[peer].overhead_bytes.get(batch, found[peer].overhead_bytes[1])
            rows.append(
                Row(
                    name=f"overhead on disk, batch of {batch}",
                    unit="B/message",
                    ours=ours.overhead_bytes[batch],
                    peer=peer,
                    theirs=theirs,
                    target=OVERHEAD_TARGET if batch == BATCHED and peer == RABBITMQ else None,
                )
            )
    rows += [
        Row(
            name="written to disk while consuming",
            unit="MB",
            ours=ours.written_bytes / 1e6,
            peer=peer,
            theirs=found[peer].written_bytes / 1e6,
        )
        for peer in (RABBITMQ, ACTIVEMQ, KAFKA)
    ]
    return rows
