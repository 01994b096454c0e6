"""A cluster of several brokers as processes, ours with a ZooKeeper beside or Apache Kafka (KRaft, all of them voters).

Both have their defaults, but for what `COMMON_SETTINGS` and the caller say, under Kafka's names.

Invariant: nothing of it lives when the block ends.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import ServerProcess, cpu_s, ended
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.processes import free_port
from tests.support.cluster.network import GATEWAY, Network
from tests.support.kafka import KafkaNode, prepare_kafka_nodes

OURS = "ours"
KAFKA = "Apache Kafka"
LOCALHOST = "127.0.0.1"
PROGRAM = (sys.executable, "-m", "pipeline")
PORT = 9092
CONTROLLER_PORT = 9093
MAX_WARNINGS = 20
"""Of each broker that are shown with an error."""
COMMON_SETTINGS = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a node runs."""

    number: int
    host: str
    port: int
    controller_port: int
    wrap: Callable[[Sequence[str]], list[str]] = list
    """The command that runs a command there."""


def local_places(count: int) -> list[Place]:
    """Free ports of this host."""
    return [
        Place(number=number, host=LOCALHOST, port=free_port(), controller_port=free_port())
        for number in range(1, count + 1)
    ]


def network_places(network: Network) -> list[Place]:
    """Every node has a host of its own."""
    return [
        Place(number=number, host=host.address, port=PORT, controller_port=CONTROLLER_PORT, wrap=host.command)
        for number, host in network.hosts.items()
    ]


@dataclass(slots=True)
class ClusterProcesses:
    """The nodes of a cluster, by their broker ids."""

    name: str
    nodes: dict[int, ServerProcess]
    directories: dict[int, Path]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{node.host}:{node.port}" for node in self.nodes.values())

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all nodes so far."""
        return sum(cpu_s(node.pid) for node in self.nodes.values())

    def start(self) -> None:
        """All at once; wait until they listen."""
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_for_port()


OpenCluster = Callable[[Path, Sequence[Place], Mapping[str, object]], AbstractContextManager[ClusterProcesses]]


@contextmanager
def our_cluster(
    directory: Path,
    places: Sequence[Place],
    settings: Mapping[str, object],
    program: Sequence[str] = PROGRAM,
) -> Iterator[ClusterProcesses]:
    """Ours, not running yet, and a ZooKeeper that runs on this host."""
    directory.mkdir(parents=True, exist_ok=True)
    host = LOCALHOST if all(place.host == LOCALHOST for place in places) else GATEWAY
    with ZooKeeperProcess(directory / "zookeeper", host=host) as zookeeper:
        commands = our_commands(directory, places, zookeeper.connect, settings, program)
        with _cluster(OURS, directory, places, commands) as cluster:
            yield cluster


def our_commands(
    directory: Path,
    places: Iterable[Place],
    zookeeper: str,
    settings: Mapping[str, object],
    program: Sequence[str] = PROGRAM,
) -> dict[int, list[str]]:
    """The commands that start our brokers, whose configuration is written below `directory`."""
    commands = {}
    for place in places:
        given = {
            "broker.id": place.number,
            "listeners": f"PLAINTEXT://{place.host}:{place.port}",
            "log.dirs": str(directory / str(place.number) / "logs"),
            "zookeeper.connect": zookeeper,
            **COMMON_SETTINGS,
            **settings,
        }
        config = directory / f"{place.number}.toml"
        config.write_text("".join(f"{key} = {value!r}\n" for key, value in given.items()), encoding="utf-8")
        commands[place.number] = [*program, "broker", "start", "--config", str(config)]
    return commands


@contextmanager
def kafka_cluster(
    directory: Path, places: Sequence[Place], settings: Mapping[str, object]
) -> Iterator[ClusterProcesses]:
    """Apache Kafka, formatted and not running yet."""
    nodes = {
        KafkaNode(
            number=place.number, host=place.host, port=place.port, controller_port=place.controller_port
        ): directory / str(place.number)
        for place in places
    }
    commands = prepare_kafka_nodes(nodes, {**COMMON_SETTINGS, **settings})
    by_number = {node.number: command for node, command in commands.items()}
    with _cluster(KAFKA, directory, places, by_number) as cluster:
        yield cluster


@contextmanager
def _cluster(
    name: str, directory: Path, places: Sequence[Place], commands: Mapping[int, Sequence[str]]
) -> Iterator[ClusterProcesses]:
    with ExitStack() as stack:
        nodes = {}
        for place in places:
            log = directory / f"{place.number}.log"
            server = ServerProcess(place.wrap(commands[place.number]), place.port, log, host=place.host)
            nodes[place.number] = stack.enter_context(ended(server))
        yield ClusterProcesses(name, nodes, {place.number: directory / str(place.number) / "logs" for place in places})


@contextmanager
def with_warnings(directory: Path) -> Iterator[None]:
    """Adds to an error of the block what the brokers below a directory warned of last: rare faults are seen once."""
    try:
        yield
    except Exception as error:
        for log in sorted(directory.glob("[0-9]*.log")):
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            warned = [line for line in lines if '"level": "info"' not in line and '"level": "debug"' not in line]
            error.add_note("\n".join([f"broker {log.stem} warned:", *warned[-MAX_WARNINGS:]]))
        raise


SYSTEMS: Mapping[str, OpenCluster] = {OURS: our_cluster, KAFKA: kafka_cluster}
