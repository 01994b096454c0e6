"""ACLs of znodes that exist: set from the root down, so that nobody can add an open znode behind.

Invariant: the work can be interrupted anywhere, and done again: each znode gets the ACL that its path has by
`znode_acls`, whatever it had before. Source: Kafka's ZkSecurityMigrator.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress

import trio

from pipeline.coordination.znode_acls import OPEN_ROOTS, SECURE_ROOTS, ZnodeAcl, default_acl
from pipeline.coordination.zookeeper import ZooKeeper
from pipeline.errors import NodeExistsError, NoNodeError
from pipeline.net.nurseries import unwrapped_errors

WORKERS = 32
"""Znodes that are worked on at the same time."""


async def migrate_acls(
    client: ZooKeeper, *, is_secured: bool, roots: Sequence[str] | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Set the ACLs of these znodes and all below them, and yield each with the number of znodes.

    `roots`: by default the chroot itself, without what other programs have there, and all roots of brokers. Znodes that
    go meanwhile do not count. Raises CoordinationError.
    """
    if roots is None:
        if is_secured:
            await create_open_roots(client)
        yield "/", int(await _set_acl(client, "/", is_secured))
    for root in SECURE_ROOTS if roots is None else roots:
        count = await _set_acls_below(client, root, is_secured)
        if count:
            yield root, count


async def create_open_roots(client: ZooKeeper) -> None:
    """Create what other programs write below, before they cannot do it themselves any more."""
    for root in OPEN_ROOTS:
        with suppress(NodeExistsError):
            await client.create(root)
        await client.set_acl(root, ZnodeAcl.OPEN)


async def _set_acls_below(client: ZooKeeper, root: str, is_secured: bool) -> int:
    """Set the ACLs of a tree, parents before children, and return the number of znodes."""
    count, level = 0, [root]
    while level:
        branches = await _Level(client, is_secured).work_on(level)
        count += len(branches)
        level = [child for children in branches for child in children]
    return count


class _Level:
    """Znodes at one depth of a tree."""

    def __init__(self, client: ZooKeeper, is_secured: bool) -> None:
        self._client = client
        self._is_secured = is_secured
        self._branches: list[list[str]] = []

    async def work_on(self, paths: Sequence[str]) -> list[list[str]]:
        """Set the ACLs, and return the children of each znode that exists."""
        waiting = iter(paths)
        with unwrapped_errors():
            async with trio.open_nursery() as nursery:
                for _ in range(min(WORKERS, len(paths))):
                    nursery.start_soon(self._work, waiting)
        return self._branches

    async def _work(self, waiting: Iterator[str]) -> None:
        for path in waiting:
            if await _set_acl(self._client, path, self._is_secured):
                names: Sequence[str] = ()
                with suppress(NoNodeError):
                    names = await self._client.children(path)
                parent = "" if path == "/" else path
                self._branches.append([f"{parent}/{name}" for name in names])


async def _set_acl(client: ZooKeeper, path: str, is_secured: bool) -> bool:
    """Return False if the znode does not exist."""
    try:
        await client.set_acl(path, default_acl(path, is_secured=is_secured))
    except NoNodeError:
        return False
    return True
