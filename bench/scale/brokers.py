"""Brokers of one machine that are clusters of their own below chroots of one ZooKeeper, and a mirror between them."""

import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.broker.servers import BENCH_SETTINGS
from bench.processes import ServerProcess, ended
from pipeline.processes import free_port

DEADLINE_S = 300.0
REQUESTS = "kafka_network_requestmetrics_requests_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    """A broker that runs."""

    process: ServerProcess
    http_port: int

    @property
    def address(self) -> str:
        """Address for clients."""
        return f"127.0.0.1:{self.process.port}"

    def requests(self) -> float:
        """Return the number of requests so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=DEADLINE_S) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return sum(each.value for family in families for each in family.samples if each.name == REQUESTS)


@contextmanager
def running_broker(zookeeper: str, directory: Path, name: str, broker_id: int = 1) -> Iterator[RunningBroker]:
    """A broker of the cluster of this name."""
    below = directory / f"{name}-{broker_id}"
    below.mkdir(parents=True)
    port, http_port = free_port(), free_port()
    given = {
        "broker.id": broker_id,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "http.listen": f"127.0.0.1:{http_port}",
        "log.dirs": str(below / "logs"),
        "zookeeper.connect": f"{zookeeper}/{name}",
        "offsets.topic.replication.factor": 1,
        **BENCH_SETTINGS,
    }
    config = below / "broker.toml"
    config.write_text("".join(f"{key} = {value!r}\n" for key, value in given.items()), encoding="utf-8")
    command = [sys.executable, "-m", "pipeline", "broker", "start", "--config", str(config)]
    with ended(ServerProcess(command, port, below / "broker.log")) as process:
        process.launch()
        process.wait_for_port()
        yield RunningBroker(process=process, http_port=http_port)


@contextmanager
def running_mirror(hub: RunningBroker, brokers: Sequence[RunningBroker], directory: Path) -> Iterator[ServerProcess]:
    """A mirror of topics `topic-...` of the clusters of these brokers."""
    port = free_port()
    lines = [f'destination.bootstrap.servers = "{hub.address}"', 'topics = ["topic-.*"]']
    lines.append(f'http.listen = "127.0.0.1:{port}"')
    for number, broker in enumerate(brokers):
        lines += ["[[sources]]", f'name = "dc-{number:03}"', f'bootstrap.servers = "{broker.address}"']
    config = directory / "mirror.toml"
    config.write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "pipeline", "mirror", "start", "--config", str(config)]
    with ended(ServerProcess(command, port, directory / "mirror.log")) as process:
        process.launch()
        yield process
