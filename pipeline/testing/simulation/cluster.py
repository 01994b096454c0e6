"""A simulated cluster: machines with their brokers, ZooKeeper, the network, and what an outsider looks at."""

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from pipeline.broker.replication.partition import Partition
from pipeline.coordination.cluster_znodes import ControllerNode
from pipeline.model import HostPort, Offset, TopicPartition
from pipeline.records.batch import iterate_headers
from pipeline.records.record import iterate_records
from pipeline.testing.simulation.inside import Inside
from pipeline.testing.simulation.machine import Machine
from pipeline.testing.simulation.network import SimulatedNetwork
from pipeline.testing.simulation.schedule import current_schedule
from pipeline.testing.simulation.state_rules import StateInZooKeeper
from pipeline.testing.simulation.trace import Trace
from pipeline.testing.simulation.watermark_rules import WatermarkRules
from pipeline.testing.simulation.zookeeper import SimulatedZooKeeper

READ_BYTES = 1 << 26
"""More than a segment has."""


class SimulatedCluster:
    """Everything that is not a client. Its brokers run in `nursery`."""

    def __init__(
        self,
        brokers: int,
        directory: Path,
        settings: Mapping[str, Any],
        *,
        nursery: trio.Nursery,
        trace: Trace,
        seed: str,
        name: str = "broker",
        network: SimulatedNetwork | None = None,
    ) -> None:
        """`name` begins the names of its machines. `network` is its share of a network that joins several clusters."""
        self.rng = random.Random(f"cluster {seed}")
        self.name = name
        self.trace = trace
        self.schedule = current_schedule()
        slow = self.rng.choice([0.0, 0.01, 0.1])
        self.network = network or SimulatedNetwork(self.schedule, random.Random(f"network {seed}"), slow)
        servers = "zookeeper" if network is None else f"{name}-zk"
        self.zookeeper = SimulatedZooKeeper(self.schedule, random.Random(f"zookeeper {seed}"), trace, servers)
        self.inside = Inside(self.zookeeper, WatermarkRules(int(settings["min.insync.replicas"])))
        self.machines = [
            Machine(
                number,
                directory,
                settings,
                zookeeper=self.zookeeper,
                network=self.network,
                inside=self.inside,
                trace=trace,
                seed=seed,
                cluster=name,
            )
            for number in range(1, brokers + 1)
        ]
        self._nursery = nursery

    @property
    def addresses(self) -> tuple[HostPort, ...]:
        """Addresses that clients begin with."""
        return tuple(machine.address for machine in self.machines)

    def start(self, machine: Machine) -> None:
        """Have its broker run, once what ran before has ended."""
        self._nursery.start_soon(machine.run_until_stopped)

    def machine(self, broker: int) -> Machine | None:
        """The machine of this broker."""
        return next((machine for machine in self.machines if machine.id == broker), None)

    def controller(self) -> Machine | None:
        """The machine of the controller, as ZooKeeper has it."""
        node = self.zookeeper.znodes.find_or_none(ControllerNode.PATH)
        return None if node is None else self.machine(json.loads(node.data)["brokerid"])

    def states(self) -> dict[TopicPartition, StateInZooKeeper]:
        """All partitions, as ZooKeeper has them."""
        return self.zookeeper.partitions.states()

    def replica_ids(self, topic_partition: TopicPartition) -> tuple[int, ...]:
        """The brokers that a partition is assigned to, as ZooKeeper has them."""
        return self.zookeeper.partitions.replica_ids(topic_partition)

    def replicas(self, topic_partition: TopicPartition) -> dict[str, Partition]:
        """The replicas of the brokers that serve, by the names of their machines."""
        found = {}
        for machine in self.machines:
            if machine.handle is not None:
                partition = machine.handle.replicas.partitions.get(topic_partition)
                if partition is not None:
                    found[machine.name] = partition
        return found


def bytes_of_log(partition: Partition, end: Offset, start: Offset | None = None) -> bytes:
    """The log up to this offset, from the log start offset or from the batch with the offset `start` on."""
    offset, found = partition.log.log_start_offset if start is None else start, []
    while offset < end:
        piece = partition.log.read(offset, READ_BYTES, end)
        data = os.pread(piece.region.file.fileno(), piece.region.size, piece.region.position)
        if not data:
            break
        found.append(data)
        offset = Offset(max(header.last_offset for _, header in iterate_headers(data)) + 1)
    return b"".join(found)


def records_of(data: bytes) -> dict[Offset, bytes]:
    """Offsets and values of the records in a log."""
    return {Offset(record.offset): bytes(record.value or b"") for record in iterate_records(memoryview(data))}
