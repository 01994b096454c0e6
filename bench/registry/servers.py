"""The servers of the benchmark: our registry over our broker, and a peer, each on a core of its own.

Clients run on the other cores. The peer is a bare web application on uvicorn, the server below most registries that are
written in Python: it answers the same bytes from a dictionary, and does nothing else.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from confluent_kafka import Producer

from bench.broker.servers import Server, our_broker
from bench.processes import START_DEADLINE_S, ServerProcess, ended
from bench.registry.schemas import schema_text
from pipeline.processes import free_port
from pipeline.schema_registry.state.events import SchemaWritten, encode_event

TOPIC = "_schemas"
SUBJECT_SCHEMAS = 10
"""Versions of a subject."""
FLUSH_S = 120
READY_POLL_S = 0.02


def server_core() -> int:
    """The core on which a measured server runs alone."""
    return min(os.sched_getaffinity(0))


def client_cores() -> set[int]:
    """Those of clients, brokers and everything else: all others, if there are others."""
    return os.sched_getaffinity(0) - {server_core()} or {server_core()}


@contextmanager
def registry_over(broker: Server, directory: Path) -> Iterator[ServerProcess]:
    """A registry over the broker on the servers' core, not running yet."""
    port = free_port()
    config = directory / "registry.toml"
    given = {"bootstrap.servers": broker.bootstrap, "http.listen": f"127.0.0.1:{port}"}
    config.write_text("".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in given.items()))
    command = [sys.executable, "-m", "pipeline", "registry", "start", "--config", str(config)]
    with ended(ServerProcess(_pinned(command), port, directory / "registry.log")) as process:
        yield process
        process.stop()


@contextmanager
def peer_of(directory: Path, schemas: int) -> Iterator[ServerProcess]:
    """The peer on the servers' core, not running yet, which knows as many schemas."""
    port = free_port()
    command = [sys.executable, "-m", "bench.registry.peer", str(port), str(schemas)]
    with ended(ServerProcess(_pinned(command), port, directory / "peer.log")) as process:
        yield process


@contextmanager
def broker_beside(directory: Path) -> Iterator[Server]:
    """Our broker on the clients' cores, running."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, client_cores())
    try:
        with our_broker(directory) as broker:
            broker.start()
            os.sched_setaffinity(0, mine)
            yield broker
    finally:
        os.sched_setaffinity(0, mine)


def start_until_ready(process: ServerProcess) -> float:
    """Start a registry; seconds until it says that it is ready."""
    began = time.monotonic()
    process.launch()
    url = f"http://{process.host}:{process.port}/readyz"
    with httpx.Client(timeout=5) as client:
        while time.monotonic() - began < START_DEADLINE_S:
            process.check()
            try:
                if client.get(url).status_code == 200:
                    return time.monotonic() - began
            except httpx.TransportError:
                pass
            time.sleep(READY_POLL_S)
    raise TimeoutError(f"the registry was not ready within {START_DEADLINE_S:.0f} s")


def fill(broker: Server, schemas: int) -> None:
    """Write schemas of the ids from 1 on into the topic, as a registry does. A registry must have made the topic."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50, "compression.type": "lz4"})
    for number in range(schemas):
        subject, version = f"events-{number // SUBJECT_SCHEMAS:06d}-value", number % SUBJECT_SCHEMAS + 1
        event = SchemaWritten(subject=subject, version=version, id=number + 1, text=schema_text(number + 1))
        key, value = encode_event(event)
        producer.produce(TOPIC, value, key, partition=0)
        producer.poll(0)
        if number % 10_000 == 0:
            producer.flush(FLUSH_S)
    if producer.flush(FLUSH_S):
        raise RuntimeError("the schemas were not all written")


def _pinned(command: list[str]) -> list[str]:
    return ["taskset", "-c", str(server_core()), *command]
