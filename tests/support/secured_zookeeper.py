"""A ZooKeeper with users and TLS for tests, and the settings of its clients."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from pipeline.cli.secured.certificates import Authority
from pipeline.coordination.embedded import ServerProtection
from pipeline.coordination.zookeeper import ZooKeeper
from pipeline.coordination.zookeeper_security import ZooKeeperSecurity
from pipeline.credentials import Secret

AUTHORITY = Authority()
PASSWORD = "correct-horse"
BROKER = {"zookeeper.auth.username": "broker", "zookeeper.auth.password": PASSWORD}
OTHER = {"zookeeper.auth.username": "other", "zookeeper.auth.password": "another-horse"}
USERS = {"broker": Secret(PASSWORD), "other": Secret("another-horse")}


def tls_settings(directory: Path) -> Mapping[str, Any]:
    """What clients need to reach a server of `encrypted`."""
    return {
        "zookeeper.ssl.client.enable": True,
        "zookeeper.ssl.truststore.location": str(directory / "ca.pem"),
    }


def encrypted(directory: Path, *, requires_user: bool, host: str = "127.0.0.1") -> ServerProtection:
    """Write certificates, and return the protection of a server that has the users above."""
    directory.mkdir(parents=True, exist_ok=True)
    issued = AUTHORITY.issue("zookeeper", [host])
    (directory / "zookeeper.pem").write_text(issued.key + issued.certificate)
    (directory / "ca.pem").write_text(AUTHORITY.certificate)
    return ServerProtection(
        users=USERS,
        requires_user=requires_user,
        keystore=directory / "zookeeper.pem",
        truststore=directory / "ca.pem",
    )


def protected(*settings: Mapping[str, Any]) -> ZooKeeperSecurity:
    """Return the protection that these settings describe together."""
    return ZooKeeperSecurity.from_settings({key: value for part in settings for key, value in part.items()})


async def acl_of(client: ZooKeeper, path: str) -> dict[str, int]:
    """Permissions by `scheme:id`."""
    full = client._full(path)
    acls, _ = await client._call(path, lambda kazoo: kazoo.get_acls_async(full))
    return {f"{acl.id.scheme}:{acl.id.id}": acl.perms for acl in acls}


def expire(client: ZooKeeper) -> None:
    """Take the session over on a second connection, and close it. Blocks."""
    kazoo = client._session.kazoo
    second: KazooClient = client._session._open_kazoo(client_id=kazoo.client_id)
    assert second.start_async().wait(30)
    second.stop()
    second.close()
