"""Two clusters of three brokers and a mirror between them, all processes, which are broken one by one.

The mirror reaches the brokers of both clusters through proxies, which are cut for it alone.
"""

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from pipeline.cli.child_services import ServiceUnit, Unit, ZooKeeperUnit, stop_in_reverse
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.model import HostPort
from pipeline.net.nurseries import unwrapped_errors
from pipeline.processes import free_port
from tests.support.links import Links, linked

BROKERS = 3
SOURCE, HUB = "east", "hub"
MIRROR_CLIENT_ID = "pipeline-mirror"
SESSION_TIMEOUT_MS = 4000
FETCH_MAX_WAIT_S = 0.5
"""Default of `fetch.max.wait.ms`."""


@dataclass(slots=True)
class Victim:
    """A process that is killed, or stopped by SIGSTOP."""

    unit: Unit
    pid: int = 0

    async def start(self) -> None:
        """Start the process (again)."""
        self.pid = await self.unit.start()

    async def kill(self, down_s: float) -> None:
        """Kill the process, and start it again after `down_s` seconds."""
        os.kill(self.pid, signal.SIGKILL)
        await self.unit.wait()
        await trio.sleep(down_s)
        await self.start()

    async def pause(self, held_s: float) -> None:
        """Stop the process for `held_s` seconds."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            await trio.sleep(held_s)
        finally:
            os.kill(self.pid, signal.SIGCONT)


@dataclass(slots=True)
class SiteCluster:
    """One of the clusters."""

    zookeeper: Victim
    zookeeper_connect: str
    brokers: list[Victim]
    links: Links
    bootstrap: str


@dataclass(slots=True)
class MirrorSite:
    """The processes and their addresses."""

    source: SiteCluster
    hub: SiteCluster
    mirror: Victim
    url: str
    """URL of the mirror."""


@asynccontextmanager
async def mirror_site(
    directory: Path,
    topics: Sequence[str],
    *,
    is_mirror_started: bool = True,
    hub_session_timeout_ms: int = SESSION_TIMEOUT_MS,
) -> AsyncIterator[MirrorSite]:
    """Start all, and stop it when the block ends. `topics`: regular expressions for the mirror."""
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(_planned(directory / SOURCE, SOURCE, SESSION_TIMEOUT_MS))
        hub = await stack.enter_async_context(_planned(directory / HUB, HUB, hub_session_timeout_ms))
        settings = {
            "destination.bootstrap.servers": hub.bootstrap,
            "topics": list(topics),
            "sources": [{"name": SOURCE, "bootstrap.servers": source.bootstrap}],
        }
        mirror = ServiceUnit("mirror", "mirror", directory / "mirror", settings)
        victim = Victim(mirror)
        stages = [
            [source.zookeeper, hub.zookeeper],
            [*source.brokers, *hub.brokers],
            [victim] if is_mirror_started else [],
        ]
        try:
            for stage in stages:
                with unwrapped_errors():
                    async with trio.open_nursery() as nursery:
                        for each in stage:
                            nursery.start_soon(each.start)
            yield MirrorSite(source, hub, victim, mirror.url)
        finally:
            await stop_in_reverse([[each.unit for each in stage] for stage in stages])


@asynccontextmanager
async def _planned(directory: Path, name: str, session_timeout_ms: int) -> AsyncIterator[SiteCluster]:
    """Open the proxies of a cluster that does not run yet."""
    links = Links(MIRROR_CLIENT_ID)
    zookeeper = ZooKeeperProcess(directory / "zookeeper", port=free_port())
    listeners = [HostPort("127.0.0.1", free_port()) for _ in range(BROKERS)]
    async with linked(links, listeners) as proxies:
        brokers = []
        for number, (listener, proxy) in enumerate(zip(listeners, proxies, strict=True), start=1):
            own = directory / f"broker-{number}"
            settings = {
                "broker.id": number,
                "listeners": f"PLAINTEXT://{listener}",
                "advertised.listeners": f"PLAINTEXT://{proxy}",
                "log.dirs": str(own / "logs"),
                "zookeeper.connect": zookeeper.connect,
                "zookeeper.session.timeout.ms": session_timeout_ms,
                "default.replication.factor": BROKERS,
                "min.insync.replicas": BROKERS - 1,
                "auto.create.topics.enable": False,
            }
            brokers.append(Victim(ServiceUnit(f"{name}-{number}", "broker", own, settings)))
        bootstrap = ",".join(map(str, proxies))
        unit = Victim(ZooKeeperUnit(zookeeper, f"{name}-zookeeper"))
        yield SiteCluster(unit, zookeeper.connect, brokers, links, bootstrap)
