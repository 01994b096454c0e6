"""Discovery of a first broker: from a list of addresses, or from the registrations in ZooKeeper."""

import json
from collections.abc import Awaitable, Callable, Sequence
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


def from_bootstrap(addresses: Sequence[HostPort]) -> Discovery:
    """Discover always these addresses."""

    async def discover() -> Sequence[HostPort]:
        return addresses

    return discover


def from_zookeeper(zookeeper: ZnodeReader) -> Discovery:
    """Discover the brokers that are registered in ZooKeeper. Raises CoordinationError."""

    async def discover() -> Sequence[HostPort]:
        addresses = []
        for name in sorted(await zookeeper.children(BROKER_IDS)):
            path = f"{BROKER_IDS}/{name}"
            data, _version = await zookeeper.get(path)
            addresses.append(_address(path, data))
        return addresses

    return discover


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
