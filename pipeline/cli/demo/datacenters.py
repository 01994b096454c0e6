"""Two live datacenters and a hub on one machine, each with ZooKeeper and broker; mirror, registry, audit beside.

What the demo shows and what the tests of the whole pipeline break: every part is a process of its own.
"""

from collections.abc import Sequence
from pathlib import Path

import trio

from pipeline.cli.child_services import ServiceUnit, Unit, ZooKeeperUnit
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.net.nurseries import unwrapped_errors
from pipeline.processes import free_port

LIVE = ("east", "west")
HUB = "hub"
DIRECTORIES = (*LIVE, HUB, "registry", "mirror", "audit")
"""All that `Datacenters` makes in its root."""
SESSION_TIMEOUT_MS = 6000
AUDIT_INTERVAL_MS = 1000
AUDIT_GRACE_MS = 10_000


class Datacenters:
    """The processes and where they are found. `async with` starts them all and stops them at the end."""

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
            # What is published here may be years old, and is to be there as long as the directory is.
            "log.retention.ms": -1,
            # A replica is created by the mirror, not by a consumer that comes first.
            "auto.create.topics.enable": name != HUB,
        }
        self.brokers[name] = ServiceUnit(f"{name}-broker", "broker", directory / "broker", settings)
        self.bootstrap[name] = f"127.0.0.1:{port}"

    @property
    def stages(self) -> list[list[Unit]]:
        """What can be started at the same time, in order."""
        return [
            list(self.zookeepers.values()),
            list(self.brokers.values()),
            [self.registry, self.mirror, self.audit],
        ]

    async def start(self) -> None:
        """Start everything. Raises the error of the first that does not come up."""
        for stage in self.stages:
            with unwrapped_errors():
                async with trio.open_nursery() as nursery:
                    for unit in stage:
                        nursery.start_soon(self.start_unit, unit)

    async def start_unit(self, unit: Unit) -> None:
        """Start one of them (again)."""
        self.pids[unit.name] = await unit.start()

    async def stop(self) -> None:
        """Stop everything, in the opposite order, even when cancelled."""
        with trio.CancelScope(shield=True):
            for stage in reversed(self.stages):
                async with trio.open_nursery() as nursery:
                    for unit in stage:
                        nursery.start_soon(unit.stop)

    async def __aenter__(self) -> "Datacenters":
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()
