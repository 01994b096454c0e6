"""Two live datacenters and a hub on one machine, each with ZooKeeper and broker; mirror, registry, audit beside.

Each part is a process of its own. The demo shows them, and the tests of the whole pipeline break them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from pipeline.cli.child_services import ServiceUnit, Unit, ZooKeeperUnit, stop_in_reverse
from pipeline.cli.secured.local_security import LocalSecurity
from pipeline.cli.secured.roles import APPLICATION_USER
from pipeline.cli.terminal.connect import randomness
from pipeline.client.cluster.config import ClientConfig
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.net.nurseries import unwrapped_errors
from pipeline.net.security.client_security import ClientSecurity
from pipeline.processes import free_port
from pipeline.settings import parse_addresses

LIVE = ("east", "west")
HUB = "hub"
DIRECTORIES = (*LIVE, HUB, "registry", "mirror", "audit", "security")
"""Directories that `Datacenters` makes in its root."""
SESSION_TIMEOUT_MS = 6000
AUDIT_INTERVAL_MS = 1000
AUDIT_GRACE_MS = 10_000


class Datacenters:
    """The processes and their addresses. `async with` starts them all and stops them at the end."""

    def __init__(self, root: Path, topics: Sequence[str], *, secure: bool = False) -> None:
        """`topics`: regular expressions for the mirror. `secure`: all clusters have TLS, SASL and ACLs, with the same
        authority and users.
        """
        self.root = root
        self.security = LocalSecurity(root / "security") if secure else None
        self.zookeepers: dict[str, ZooKeeperUnit] = {}
        self.brokers: dict[str, ServiceUnit] = {}
        self.bootstrap: dict[str, str] = {}
        for name in (*LIVE, HUB):
            self._add_datacenter(name)
        hub = self.bootstrap[HUB]
        self.registry = self._service(
            "registry",
            {"bootstrap.servers": hub, **self._as_user("registry"), "kafkastore.topic.replication.factor": 1},
        )
        self.mirror = self._service(
            "mirror",
            {
                "destination.bootstrap.servers": hub,
                **{f"destination.{key}": value for key, value in self._as_user("mirror").items()},
                "topics": list(topics),
                "refresh.interval.ms": 500,
                "retry.backoff.ms": 200,
                "sources": self._live("mirror"),
            },
        )
        self.audit = self._service(
            "audit",
            {
                "pending.grace.ms": AUDIT_GRACE_MS,
                "live": self._live("audit"),
                "replica": [{"name": HUB, "bootstrap.servers": hub, **self._as_user("audit")}],
            },
        )
        self.pids: dict[str, int] = {}

    def _service(self, noun: str, settings: Mapping[str, Any]) -> ServiceUnit:
        return ServiceUnit(noun, noun, self.root / noun, {**settings, **self._http(noun)}, authority=self._authority)

    def _http(self, name: str) -> dict[str, str]:
        return {} if self.security is None else self.security.http_settings(name)

    @property
    def _authority(self) -> Path | None:
        return None if self.security is None else self.security.authority_file

    def _as_user(self, user: str) -> dict[str, str]:
        return {} if self.security is None else self.security.client_settings(user)

    def _live(self, user: str) -> list[dict[str, str]]:
        """Return the live clusters as a service that comes as this user has them in its settings."""
        return [{"name": name, "bootstrap.servers": self.bootstrap[name], **self._as_user(user)} for name in LIVE]

    def client(self, name: str, user: str = APPLICATION_USER) -> ClientConfig:
        """Return the settings of a client of a datacenter."""
        return ClientConfig(
            bootstrap=parse_addresses(self.bootstrap[name]), security=ClientSecurity.from_settings(self._as_user(user))
        )

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
            **({} if self.security is None else self.security.broker_settings(f"{name}-broker", port)),
            **self._http(f"{name}-broker"),
        }
        self.brokers[name] = ServiceUnit(
            f"{name}-broker", "broker", directory / "broker", settings, authority=self._authority
        )
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
        if self.security is not None:
            servers = [*self.brokers.values(), self.registry, self.mirror, self.audit]
            self.security.prepare([server.name for server in servers], randomness())
            for zookeeper in self.zookeepers.values():
                zookeeper.server.protection = self.security.zookeeper_protection()
        for number, stage in enumerate(self.stages):
            with unwrapped_errors():
                async with trio.open_nursery() as nursery:
                    for unit in stage:
                        nursery.start_soon(self.start_unit, unit)
            if self.security is not None and number == 0:
                for broker in self.brokers.values():
                    await self.security.seed_at(broker.settings["zookeeper.connect"], randomness())

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
