"""Discovery of a first broker: from a list of addresses, or from the registrations in ZooKeeper."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError, NoNodeError
from pipeline.model import BROKER_IDS, BrokerId, HostPort, SecurityProtocol

logger = get_logger(__name__)

_BROKER_NAME = re.compile(r"[0-9]{1,10}")
_NOT_READABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)

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

    def __init__(self, zookeeper: ZnodeReader, protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT) -> None:
        """`protocol`: of the listeners that the client can use."""
        self.zookeeper = zookeeper
        self._protocol = protocol

    async def __call__(self) -> Sequence[HostPort]:
        """Return the addresses of the registered brokers. Raises CoordinationError, also if there is none."""
        names = await self.zookeeper.children(BROKER_IDS)
        found = (await self.addresses(names)).values()
        addresses = [address for address in found if address is not None]
        if not addresses:
            reason = "has no broker that a client can reach: do brokers run, and is the chroot theirs?"
            raise CoordinationError(BROKER_IDS, reason)
        return addresses

    async def addresses(self, names: Iterable[str]) -> dict[BrokerId, HostPort | None]:
        """Return the registered brokers of these names by id, with their addresses.

        The address is None if it cannot be read. What is no broker is left out, and so is a broker that has gone.
        Raises CoordinationError if ZooKeeper does not answer.
        """
        found: dict[BrokerId, HostPort | None] = {}
        for broker in sorted(int(name) for name in names if _BROKER_NAME.fullmatch(name)):
            path = f"{BROKER_IDS}/{broker}"
            try:
                data, _version = await self.zookeeper.get(path)
            except NoNodeError:
                continue
            try:
                found[BrokerId(broker)] = _address(data, self._protocol)
            except _NOT_READABLE as error:
                found[BrokerId(broker)] = None
                logger.warning("broker_registration_not_readable", path=path, error=repr(error))
        return found


def from_zookeeper(
    zookeeper: ZnodeReader, protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
) -> ZooKeeperDiscovery:
    """Discover the brokers that are registered in ZooKeeper, and watch for new brokers, topics and partitions.

    `protocol`: of the listeners that the client can use, `ClientSecurity.protocol`.
    """
    return ZooKeeperDiscovery(zookeeper, protocol)


def _address(registration: bytes, protocol: SecurityProtocol) -> HostPort:
    """Return the listener of this protocol in a registration (JSON, versions 1 to 5). Raises `_NOT_READABLE`."""
    fields = json.loads(registration)
    for endpoint in fields.get("endpoints") or ():
        _name, _, authority = endpoint.partition("://")
        host, _, port = authority.rpartition(":")
        if fields.get("listener_security_protocol_map", {}).get(_name, _name) == protocol.value:
            return HostPort(host.strip("[]"), int(port))
    if protocol is not SecurityProtocol.PLAINTEXT or not isinstance(fields["host"], str):
        raise KeyError(protocol.value)
    return HostPort(fields["host"], int(fields["port"]))
