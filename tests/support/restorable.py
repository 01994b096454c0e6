"""A live cluster of one broker in this process, whose data and ZooKeeper can be set back together."""

import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.model import HostPort
from pipeline.processes import free_port
from pipeline.testing.memory_zookeeper import Backup, MemoryZooKeeper
from tests.support.brokers import serving_cluster


class Restorable:
    """The cluster. `cluster` is what clients see, and outlives the broker."""

    def __init__(self, directory: Path, cluster: Cluster, address: HostPort) -> None:
        self.cluster = cluster
        self._directory = directory
        self._address = address
        self._zookeeper = MemoryZooKeeper()
        self._backup: Backup | None = None

    def running(self) -> AbstractAsyncContextManager[Cluster]:
        """Run the broker."""
        listeners = f"PLAINTEXT://{self._address}"
        return serving_cluster(self._directory / "now", zookeeper=self._zookeeper, listeners=listeners)

    def back_up(self) -> None:
        """Copy all, while the broker does not run."""
        self._backup = self._zookeeper.backup()
        shutil.copytree(self._directory / "now", self._directory / "backup")

    def restore(self) -> None:
        """Go back to the copy."""
        assert self._backup is not None
        self._zookeeper.restore(self._backup)
        shutil.rmtree(self._directory / "now")
        shutil.copytree(self._directory / "backup", self._directory / "now")


@asynccontextmanager
async def restorable(directory: Path) -> AsyncIterator[Restorable]:
    """A cluster whose broker does not run yet."""
    address = HostPort("127.0.0.1", free_port())
    config = ClientConfig(bootstrap=(address,), retry_backoff_ms=10, retry_backoff_max_ms=100)
    async with open_cluster(config) as cluster:
        yield Restorable(directory, cluster, address)
