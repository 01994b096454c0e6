"""Two live datacenters and a hub on one machine, each with ZooKeeper and broker; mirror, registry, audit beside.

Each part is a process of its own. The demo shows them, and the tests of the whole pipeline break them.
"""

from collections.abc import Sequence
from pathlib import Path

import trio

from pipeline.cli.child_services import ServiceUnit, Unit, ZooKeeperUnit, stop_in_reverse
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.net.nurseries import unwrapped_errors
from pipeline.processes import free_port

LIVE = ("east", "west")
HUB = "hub"
DIRECTORIES = (*LIVE, HUB, "registry", "mirror", "audit")
"""Directories that `Datacenters` makes in its root."""
SESSION_TIMEOUT_MS = 6000
AUDIT_INTERVAL_MS = 1000
AUDIT_GRACE_MS = 10_000


class Datacenters:
    """The processes and their addresses. `async with` starts them all and stops them at the end."""

    def __init__(self, root: Path, topics: Sequence[str]) -> None:
        """`topics`: regular expressions for the mirror."""
        self.root = root
        self.zookeepers: dict[str, ZooKeeperUnit] = {}
        self.brokers: dict[str, ServiceUnit] = {}
        self.bootstrap: dict[str, str] = {}
        for name in (*LIVE, HUB):
            self._add_datacenter(name)
        hub = self.bootstrap[HUB]
        live = [{"name": name, "bootstrap.servers": self.bootstrap[name]} for name in LIVE]
        self.registry = ServiceUnit(
            "registry",
            "registry",
            root / "registry",
            {"bootstrap.servers": hub, "kafkastore.topic.replication.factor": 1},
        )
        self.mirror = ServiceUnit(
            "mirror",
            "mirror",
            root / "mirror",
            {
                "destination.bootstrap.servers": hub,
                "topics": list(topics),
                "refresh.interval.ms": 500,
                "retry.backoff.ms": 200,
                "sources": live,
            },
        )
        self.audit = ServiceUnit(
            "audit",
            "audit",
            root / "audit",
            {
                "pending.grace.ms": AUDIT_GRACE_MS,
                "live": live,
                "replica": [{"name": HUB, "bootstrap.servers": hub}],
            },
        )
        self.pids: dict[str, int] = {}

    def _add_datacenter(self, name: str) -> None:
        zookeeper_port, port = free_port(), free_port()
        directory = self.root / name
        self.zookeepers[name] = ZooKeeperUnit(
            ZooKeeperProcess(directory / "zookeeper", port=zookeeper_port), f"{name}-zookeeper"
        )
        settings = {
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
            "audit.interval.ms": AUDIT_INTERVAL_MS,
            "broker.id": 1,
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": str(directory / "broker" / "logs"),
            "zookeeper.connect": f"127.0.0.1:{zookeeper_port}",
            "datacenter": name,
            "offsets.topic.replication.factor": 1,
            # Published records may be years old, and must stay as long as the directory does.
            "log.retention.ms": -1,
            # The mirror creates the topics of the hub, and not a consumer that comes first.
            "auto.create.topics.enable": name != HUB,
        }
        self.brokers[name] = ServiceUnit(f"{name}-broker", "broker", directory / "broker", settings)
        self.bootstrap[name] = f"127.0.0.1:{port}"

    @property
    def stages(self) -> list[list[Unit]]:
        """Processes in the order of their start; those of a stage start together."""
        return [
            list(self.zookeepers.values()),
            list(self.brokers.values()),
            [self.registry, self.mirror, self.audit],
        ]

    async def start(self) -> None:
        """Start all processes. Raises the error of the first that fails to start."""
        for stage in self.stages:
            with unwrapped_errors():
                async with trio.open_nursery() as nursery:
                    for unit in stage:
                        nursery.start_soon(self.start_unit, unit)

    async def start_unit(self, unit: Unit) -> None:
        """Start one process (again)."""
        self.pids[unit.name] = await unit.start()

    async def stop(self) -> None:
        """Stop all processes in reverse order, even when cancelled."""
        await stop_in_reverse(self.stages)

    async def __aenter__(self) -> "Datacenters":
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()
