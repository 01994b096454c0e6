"""`pipeline cluster secure-znodes`: ACLs for the znodes of a cluster that was open, or open ones again."""

from collections.abc import Sequence
from enum import Enum

from pipeline.cli.terminal import output
from pipeline.cli.terminal.client_config import OPTION, zookeeper_security
from pipeline.cli.terminal.connect import ZOOKEEPER_CONNECT_MS
from pipeline.errors import ConfigurationError


class ZnodeProtection(Enum):
    """ACLs to set."""

    SECURE = "secure"
    UNSECURE = "unsecure"


async def set_acls(zookeeper: str, target: ZnodeProtection, paths: Sequence[str] | None) -> int:
    """Set the ACLs, report progress, and return the number of znodes. Raises ConfigurationError, CoordinationError."""
    from pipeline.coordination.acl_migration import migrate_acls
    from pipeline.coordination.znodes import ClusterId
    from pipeline.coordination.zookeeper import open_zookeeper

    security = zookeeper_security()
    if not security.has_identity:
        raise ConfigurationError(OPTION, "needs a file with zookeeper.auth.username: whose znodes are they to be?")
    for path in paths or ():
        if not path.startswith("/") or (path.endswith("/") and path != "/"):
            raise ConfigurationError("--path", f"is {path}, must begin with / and not end with it")
    async with open_zookeeper(zookeeper, connect_timeout_ms=ZOOKEEPER_CONNECT_MS, security=security) as client:
        if await client.get_or_none(ClusterId.PATH) is None and not paths:
            reason = "knows no cluster: give the address and chroot of the brokers' zookeeper.connect"
            raise ConfigurationError("--zookeeper", reason)
        count = 0
        async for root, done in migrate_acls(client, is_secured=target is ZnodeProtection.SECURE, roots=paths):
            count += done
            output.note(f"{root}: {done} znodes")
        return count
