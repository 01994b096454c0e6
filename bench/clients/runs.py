"""Runs one client process against one server and reads its figures. kcat is timed from outside, its start included."""

import json
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice

from bench.broker.clients import ClientError, run_command
from bench.broker.servers import Server
from bench.clients.payloads import values_of
from bench.clients.plans import (
    BATCH_BYTES,
    FETCH_BYTES,
    KCAT,
    LINGER_MS,
    PARTITION_FETCH_BYTES,
    PRODUCE,
    REQUEST_BYTES,
    Run,
)
from tests.support.clients import kcat_command

KCAT_DEADLINE_S = 150
PRODUCES = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": LINGER_MS,
    "batch.size": BATCH_BYTES,
    "message.max.bytes": REQUEST_BYTES,
    "queue.buffering.max.messages": 500_000,
}
CONSUMES = {
    "fetch.message.max.bytes": PARTITION_FETCH_BYTES,
    "fetch.max.bytes": FETCH_BYTES,
    "queued.min.messages": 10_000_000,
    "queued.max.messages.kbytes": 1_000_000,
}


def figures_of(server: Server, topic: str, run: Run) -> dict[str, float]:
    """Records per second of one client process, and what else it measures. Raises ClientError."""
    if run.way == KCAT:
        return _kcat(server, topic, run)
    module = "bench.clients.ours" if run.is_ours else "bench.clients.peers"
    given = json.dumps(run.on(server.bootstrap, topic))
    figures: dict[str, float] = json.loads(run_command([sys.executable, "-m", module, given]))
    return figures


def _kcat(server: Server, topic: str, run: Run) -> dict[str, float]:
    kcat, environment = kcat_command()
    settings = {**(PRODUCES if run.action == PRODUCE else CONSUMES), "compression.codec": run.data.codec}
    options = [option for name, value in settings.items() for option in ("-X", f"{name}={value}")]
    command = [kcat, "-q", "-b", server.bootstrap, "-t", topic, *options]
    if run.action == PRODUCE:
        with tempfile.NamedTemporaryFile(prefix="pipeline-bench-") as lines:
            for value in islice(cycle(values_of(run.data.record_bytes)), run.records):
                lines.write(value + b"\n")
            lines.flush()
            elapsed_s = _timed([*command, "-P", "-l", lines.name], environment)
    else:
        elapsed_s = _timed([*command, "-C", "-o", "beginning", "-c", str(run.records)], environment)
    return {"records_per_s": run.records / elapsed_s}


def _timed(command: list[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            check=False,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=KCAT_DEADLINE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ClientError(f"no end within {KCAT_DEADLINE_S} s") from error
    if done.returncode:
        raise ClientError(done.stderr.decode(errors="replace").strip()[-200:])
    return time.perf_counter() - started
