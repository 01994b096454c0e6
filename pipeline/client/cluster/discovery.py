"""Discovery of a first broker: from a list of addresses, or from the registrations in ZooKeeper."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from pipeline.errors import CoordinationError
from pipeline.model import BROKER_IDS, HostPort

Discovery = Callable[[], Awaitable[Sequence[HostPort]]]
"""Returns addresses of brokers in the order to try. Called at the start, and whenever no known broker answers."""


class ZnodeReader(Protocol):
    """The methods of a coordination client that discovery needs."""

    async def get(self, path: str) -> tuple[bytes, int]:
        """Return data and version of a znode."""

    async def children(self, path: str) -> Sequence[str]:
        """Return the names of a znode's children."""

    def watch_data(self, path: str) -> AsyncIterator[tuple[bytes, int] | None]:
        """Yield data and version now (None: no znode), then after each change."""

    def watch_children(self, path: str) -> AsyncIterator[tuple[str, ...]]:
        """Yield the names of the children now (none: no znode), then after each change."""


def from_bootstrap(addresses: Sequence[HostPort]) -> Discovery:
    """Discover always these addresses."""

    async def discover() -> Sequence[HostPort]:
        return addresses

    return discover


class ZooKeeperDiscovery:
    """Discovers the brokers that are registered in ZooKeeper. `open_cluster` also watches for changes there."""

    def __init__(self, zookeeper: ZnodeReader) -> None:
        self.zookeeper = zookeeper

    async def __call__(self) -> Sequence[HostPort]:
        """Return the addresses of the registered brokers. Raises CoordinationError."""
        return [await self.address_of(name) for name in sorted(await self.zookeeper.children(BROKER_IDS))]

    async def address_of(self, name: str) -> HostPort:
        """Return the address of a broker by its id. Raises CoordinationError."""
        path = f"{BROKER_IDS}/{name}"
        data, _version = await self.zookeeper.get(path)
        return _address(path, data)


def from_zookeeper(zookeeper: ZnodeReader) -> ZooKeeperDiscovery:
    """Discover the brokers that are registered in ZooKeeper, and watch for new brokers, topics and partitions."""
    return ZooKeeperDiscovery(zookeeper)


def _address(path: str, registration: bytes) -> HostPort:
    """Return the plaintext listener of a broker's registration (JSON, versions 1 to 5)."""
    try:
        fields = json.loads(registration)
        for endpoint in fields.get("endpoints") or ():
            _name, _, authority = endpoint.partition("://")
            host, _, port = authority.rpartition(":")
            if fields.get("listener_security_protocol_map", {}).get(_name, _name) == "PLAINTEXT":
                return HostPort(host.strip("[]"), int(port))
        return HostPort(str(fields["host"]), int(fields["port"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CoordinationError(path, f"not the registration of a broker: {error!r}") from error
