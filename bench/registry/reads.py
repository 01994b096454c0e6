"""Rows of reads: schemas by their ids over connections that are kept, from one core, with 100,000 schemas."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.processes import ServerProcess, cpu_s, resident_bytes
from bench.registry.servers import broker_beside, client_cores, fill, peer_of, registry_over, start_until_ready
from bench.report import Options, Row, Show, Target

OURS = "ours"
PEER = "uvicorn + Starlette"
ROUNDS = 3
SCHEMAS = 100_000
CONNECTIONS = 16
SECONDS = 10.0
WARM_UP_S = 1.0
RATE = 1000
GETS = "GET schema by id"
CPU = "CPU of 1,000 GETs"
P50 = "GET latency p50 at 1,000/s"
P99 = "GET latency p99 at 1,000/s"
READY = "100,000 schemas: time to ready"
START_CPU = "100,000 schemas: CPU of the start"
RESIDENT = "100,000 schemas: RSS"
MB = 1e6

Figures = dict[str, dict[str, list[float]]]
"""Values by the names of rows and servers."""


def measure(options: Options, directory: Path, show: Show) -> list[Row]:
    """All selected rows of reads and of the start."""
    if not any(map(options.selects, (GETS, CPU, P50, P99, READY, START_CPU, RESIDENT))):
        return []
    rounds, schemas = options.rounds_or(ROUNDS), options.scaled(SCHEMAS)
    figures: Figures = defaultdict(lambda: defaultdict(list))
    with (
        broker_beside(directory / "broker") as broker,
        registry_over(broker, directory) as ours,
        peer_of(directory, schemas) as peer,
    ):
        show("filling the topic of the registry")
        start_until_ready(ours)
        ours.stop()
        fill(broker, schemas)
        for number in range(rounds):
            show(f"starting with {schemas:,} schemas: round {number + 1} of {rounds}")
            ours.stop()
            figures[READY][OURS].append(start_until_ready(ours))
            figures[START_CPU][OURS].append(cpu_s(ours.pid))
            figures[RESIDENT][OURS].append(resident_bytes(ours.pid) / MB)
        peer.launch()
        peer.wait_for_port()
        for process in (ours, peer):
            _gets(process, schemas, WARM_UP_S)
        for number in range(rounds):
            for name, process in ((OURS, ours), (PEER, peer))[:: -1 if number % 2 else 1]:
                show(f"{GETS}: {name}, round {number + 1} of {rounds}")
                _measure_round(name, process, schemas, SECONDS * options.scale, figures)
    return _rows(options, figures)


def _measure_round(name: str, process: ServerProcess, schemas: int, seconds: float, figures: Figures) -> None:
    used_s = cpu_s(process.pid)
    done = _gets(process, schemas, seconds)
    figures[GETS][name].append(done["requests"] / done["seconds"])
    figures[CPU][name].append((cpu_s(process.pid) - used_s) / done["requests"] * 1000)
    steady = _gets(process, schemas, seconds, rate=RATE)
    figures[P50][name].append(steady["latency_ms"]["p50"])
    figures[P99][name].append(steady["latency_ms"]["p99"])


def _gets(process: ServerProcess, schemas: int, seconds: float, **more: Any) -> dict[str, Any]:
    asked = {"port": process.port, "ids": schemas, "connections": CONNECTIONS, "seconds": seconds, **more}
    cores = ",".join(map(str, sorted(client_cores())))
    command = ["taskset", "-c", cores, sys.executable, "-m", "bench.registry.getting", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the client failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _rows(options: Options, figures: Figures) -> list[Row]:
    least_rate, most_ms = (
        Target(bound=3000, at_least=True, absolute=True),
        Target(bound=10, at_least=False, absolute=True),
    )
    most_s, most_mb = Target(bound=10, at_least=False, absolute=True), Target(bound=400, at_least=False, absolute=True)
    rows = [
        _row(GETS, "requests/s", figures, least_rate),
        _row(CPU, "s", figures),
        _row(P50, "ms", figures),
        _row(P99, "ms", figures, most_ms),
        _row(READY, "s", figures, most_s),
        _row(START_CPU, "s", figures),
        _row(RESIDENT, "MB", figures, most_mb),
    ]
    return [row for row in rows if options.selects(row.name)]


def _row(name: str, unit: str, figures: Figures, target: Target | None = None) -> Row:
    theirs = figures[name].get(PEER)
    return Row(
        name=name,
        unit=unit,
        ours=median(figures[name][OURS]),
        peer="" if theirs is None else PEER,
        theirs=None if theirs is None else median(theirs),
        target=target,
    )
