"""The counter of a simulated broker: the broker's observer, with its checkpoints on the simulated disk."""

import random

from pipeline.audit.counting.broker_counter import BrokerLife
from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.audit.counting.publisher import open_publisher
from pipeline.broker.replication.observer import LogObserver
from pipeline.client.cluster.cluster import open_cluster
from pipeline.testing.simulation.audits.word_rules import AuditTopicWatch, WatchedBrokerCounter
from pipeline.testing.simulation.client_context import client_config
from pipeline.testing.simulation.machine import Machine

WINDOW_MS = 600_000
INTERVAL_S = 1.0


class BrokerAudit:
    """Counts and reports in one life of a broker, as `pipeline broker start` has it done."""

    def __init__(self, machine: Machine, datacenter: str, rng: random.Random, watch: AuditTopicWatch) -> None:
        self._machine = machine
        self._rng = rng
        checkpoints = PartitionCheckpoints(machine.config.log_dirs, machine.disk)
        life = BrokerLife(
            broker_id=machine.id,
            host=machine.name,
            started_ms=machine.clock(),
            interval_ms=round(INTERVAL_S * 1000),
        )
        self._counter = WatchedBrokerCounter(datacenter, WINDOW_MS, checkpoints, machine.clock, life)
        self._counter.watch, self._counter.name = watch, machine.name

    @property
    def observer(self) -> LogObserver:
        """Observer of the broker's logs."""
        return self._counter

    async def run(self) -> None:
        """Publish the counts to the broker's own cluster."""
        machine = self._machine
        config = client_config(f"{machine.name}-audit", (machine.address,))
        async with (
            open_cluster(config, connect=machine.host.connect) as cluster,
            open_publisher(cluster, self._counter, clock=machine.clock, rng=self._rng) as publisher,
        ):
            await publisher.run(INTERVAL_S)
