"""A follower that was away while 2 GB were written catches up, while its leader serves a producer at a steady rate."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.broker.clients import ClientError, confluent, delete_topic
from bench.cluster.servers import ClusterServer
from bench.processes import disk_bytes
from bench.report import Options, Row, Show, Target
from tests.support.cluster.observation import wait_until
from tests.support.cluster.systems import KAFKA, OURS

SPEED = "catch-up of a follower that was away"
LATENCY = "latency p99 at 1,000 records/s while it catches up"
BEFORE = "before it"
RECORDS = 200_000
RECORD_BYTES = 10_000
RATE = 1000
BEFORE_S = 10.0
POLL_S = 0.02
DEADLINE_S = 300
FOLLOWER = 3
TOPIC = "catch-up"
SPEED_MB_PER_S = Target(bound=150, at_least=True, absolute=True)
TIMES_LATENCY = Target(bound=2, at_least=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """What was measured of one system."""

    mb_per_s: float
    before_p99_ms: float
    meanwhile_p99_ms: float


def measure(options: Options, servers: Sequence[ClusterServer], show: Show) -> list[Row]:
    """Both rows of both systems, one after the other."""
    if not (options.selects(SPEED) or options.selects(LATENCY)):
        return []
    found: dict[str, CatchUp] = {}
    errors: dict[str, str] = {}
    for server in servers:
        show(f"{SPEED}: {server.name}")
        try:
            found[server.name] = _measure(options, server)
        except (ClientError, TimeoutError, RuntimeError) as error:
            errors[server.name] = f"{server.name}: {error}"
    return _rows(found.get(OURS), found.get(KAFKA), "; ".join(errors.values()))


def _rows(ours: CatchUp | None, theirs: CatchUp | None, error: str) -> list[Row]:
    def beside_kafka(name: str, unit: str, figure: Callable[[CatchUp], float], target: Target | None = None) -> Row:
        figures = [None if each is None else figure(each) for each in (ours, theirs)]
        return Row(name=name, unit=unit, ours=figures[0], peer=KAFKA, theirs=figures[1], target=target, error=error)

    rows = [beside_kafka(SPEED, "MB/s", lambda each: each.mb_per_s, SPEED_MB_PER_S)]
    if ours is not None:
        during, before = ours.meanwhile_p99_ms, ours.before_p99_ms
        rows.append(Row(name=LATENCY, unit="ms", ours=during, peer=BEFORE, theirs=before, target=TIMES_LATENCY))
    rows.append(beside_kafka(LATENCY, "ms", lambda each: each.meanwhile_p99_ms))
    rows.append(beside_kafka(f"{LATENCY}, {BEFORE}", "ms", lambda each: each.before_p99_ms))
    return rows


def _measure(options: Options, server: ClusterServer) -> CatchUp:
    """The follower is stopped, the topic filled, the producer started, and the follower too."""
    server.observer.create_topic(TOPIC, [[1, 2, FOLLOWER]])
    follower = server.cluster.nodes[FOLLOWER]
    follower.stop()
    records = options.scaled(RECORDS)
    asked = {"action": "produce", "records": records, "record_bytes": RECORD_BYTES, "partitions": 1}
    confluent(server, TOPIC, {**asked, "codec": "none", "acks": "all"})
    command = [sys.executable, "-m", "bench.cluster.steady"]
    told = json.dumps({"bootstrap": server.bootstrap, "topic": TOPIC, "rate": RATE})
    with subprocess.Popen(
        [*command, told], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as steady:
        try:
            _tell(steady, "warm up")
            time.sleep(BEFORE_S / 4)
            _tell(steady, "before")
            time.sleep(BEFORE_S)
            _tell(steady, "start")
            follower.launch()
            copied, elapsed_s = _catch_up(server, steady, records * RECORD_BYTES)
            _tell(steady, "after")
            server.observer.wait_until_in_sync([TOPIC], DEADLINE_S)
            out, err = steady.communicate(timeout=DEADLINE_S)
        finally:
            steady.kill()
    if steady.returncode:
        raise ClientError(err.strip().splitlines()[-1] if err.strip() else f"exit code {steady.returncode}")
    delete_topic(server, TOPIC)
    p99_ms = {name: values["p99"] for name, values in json.loads(out).items()}
    return CatchUp(
        mb_per_s=copied / elapsed_s / 1e6, before_p99_ms=p99_ms["before"], meanwhile_p99_ms=p99_ms["meanwhile"]
    )


def _catch_up(server: ClusterServer, steady: "subprocess.Popen[str]", wanted_bytes: int) -> tuple[int, float]:
    """Bytes copied and the seconds it took, from the first of them on."""
    logs = server.cluster.directories[FOLLOWER]
    first = _log_bytes(logs)
    wait_until("the follower begins", lambda: _log_bytes(logs) > first, DEADLINE_S)
    started, begun = time.monotonic(), _log_bytes(logs)
    _tell(steady, "meanwhile")
    deadline = started + DEADLINE_S
    while (copied := _log_bytes(logs) - begun) < wanted_bytes - (begun - first):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{copied} bytes copied in {DEADLINE_S} s")
        time.sleep(POLL_S)
    return copied, time.monotonic() - started


def _log_bytes(logs: Path) -> int:
    return sum(disk_bytes(partition, "*.log") for partition in logs.glob(f"{TOPIC}-*"))


def _tell(steady: "subprocess.Popen[str]", phase: str) -> None:
    assert steady.stdin is not None
    steady.stdin.write(f"{phase}\n")
    steady.stdin.flush()
