"""Three nodes of Apache Kafka whose brokers are killed and started one by one."""

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.processes import free_port
from tests.support.kafka import STOP_DEADLINE_S, UNMEASURED, KafkaNode, prepare_kafka_nodes


@dataclass
class KafkaNodes:
    """The nodes, by number from 1 on. The last one is to stay, as two of three controllers are needed."""

    commands: Mapping[int, list[str]]
    addresses: Mapping[int, str]
    directory: Path
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes."""
        return ",".join(self.addresses.values())

    def start(self, *numbers: int) -> None:
        """Start nodes, which answer a while later."""
        for number in numbers:
            with (self.directory / f"kafka-{number}.log").open("ab") as log:
                self.processes[number] = subprocess.Popen(
                    self.commands[number], stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )

    def kill(self, number: int) -> None:
        """End a node as a power failure would."""
        process = self.processes.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait(STOP_DEADLINE_S)


@contextmanager
def kafka_nodes(directory: Path, count: int = 3) -> Iterator[KafkaNodes]:
    """Format and start nodes, and kill them at the end."""
    nodes = {
        KafkaNode(number=number, host="127.0.0.1", port=free_port(), controller_port=free_port()): directory
        / str(number)
        for number in range(1, count + 1)
    }
    settings = {
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "unclean.leader.election.enable": "true",
        "replica.lag.time.max.ms": 2000,
        "broker.session.timeout.ms": 4000,
        "broker.heartbeat.interval.ms": 500,
    }
    commands = prepare_kafka_nodes(nodes, settings, UNMEASURED)
    running = KafkaNodes(
        commands={node.number: command for node, command in commands.items()},
        addresses={node.number: f"{node.host}:{node.port}" for node in nodes},
        directory=directory,
    )
    try:
        running.start(*running.commands)
        yield running
    finally:
        for number in list(running.processes):
            running.kill(number)
