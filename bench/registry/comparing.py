"""Rows of comparisons: a record of 300 fields with 100 versions, all of which count, first after a start and again."""

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from confluent_kafka import Producer

from bench.processes import ServerProcess
from bench.registry.schemas import large_schema_text
from bench.registry.servers import FLUSH_S, TOPIC, broker_beside, registry_over, start_until_ready
from bench.report import Options, Row, Show, Target
from pipeline.schema_registry.state.events import SchemaWritten, encode_event

ROUNDS = 5
VERSIONS = 100
AGAIN = 5
SUBJECT = "large-value"
FIRST_CHECK = "300 fields against 100 versions: first check after a start"
NEXT_CHECK = "300 fields against 100 versions: next check"
DEADLINE_S = 60


def measure(options: Options, directory: Path, show: Show) -> list[Row]:
    """All selected rows of comparisons."""
    if not any(map(options.selects, (FIRST_CHECK, NEXT_CHECK))):
        return []
    firsts_ms: list[float] = []
    others_ms: list[float] = []
    with broker_beside(directory / "broker") as broker, registry_over(broker, directory) as ours:
        start_until_ready(ours)
        _call(ours, "PUT", f"/config/{SUBJECT}", {"compatibility": "BACKWARD_TRANSITIVE"})
        ours.stop()
        _fill(broker.bootstrap)
        for number in range(options.rounds_or(ROUNDS)):
            show(f"{FIRST_CHECK}: round {number + 1}")
            start_until_ready(ours)
            took_ms = [_check_ms(ours) for _ in range(1 + AGAIN)]
            firsts_ms.append(took_ms[0])
            others_ms += took_ms[1:]
            ours.stop()
    rows = [
        Row(
            name=FIRST_CHECK,
            unit="ms",
            ours=median(firsts_ms),
            target=Target(bound=200, at_least=False, absolute=True),
        ),
        Row(name=NEXT_CHECK, unit="ms", ours=median(others_ms)),
    ]
    return [row for row in rows if options.selects(row.name)]


def _fill(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(1, VERSIONS + 1):
        event = SchemaWritten(subject=SUBJECT, version=number, id=number, text=large_schema_text(number))
        key, value = encode_event(event)
        producer.produce(TOPIC, value, key, partition=0)
    if producer.flush(FLUSH_S):
        raise RuntimeError("the schemas were not all written")


def _check_ms(process: ServerProcess) -> float:
    body = {"schema": large_schema_text(VERSIONS + 1)}
    began = time.perf_counter()
    answer = _call(process, "POST", f"/compatibility/subjects/{SUBJECT}/versions", body)
    took_ms = (time.perf_counter() - began) * 1000
    if answer != {"is_compatible": True}:
        raise RuntimeError(f"the check answers {answer}")
    return took_ms


def _call(process: ServerProcess, method: str, path: str, body: Any) -> Any:
    url = f"http://{process.host}:{process.port}{path}"
    answer = httpx.request(method, url, content=json.dumps(body), timeout=DEADLINE_S)
    return answer.raise_for_status().json()
