"""One znode changed by compare-and-set: read, decide, and write unless another client wrote meanwhile.

A write that was refused, or whose answer was lost, is decided again on what is there then, at once and up to `ATTEMPTS`
times. So `decide` may see a change of its own that was written all the same, and must take it for one that is there.

Transactions over several znodes, and ephemeral znodes that have owners, are written by rules of their own, where they
belong: `partition_states`, `deleted_topics`, `registration`, and changes of topics and elections of a broker.
"""

from collections.abc import Callable

from pipeline.coordination.interface import ANY_VERSION, CheckNode, CoordinationClient, CreateNode, NodeValue
from pipeline.errors import BadVersionError, CoordinationLostError, NodeContendedError, NodeExistsError, NoNodeError

ATTEMPTS = 5
FIRST_VERSION = 0


async def update(
    client: CoordinationClient, path: str, decide: Callable[[NodeValue | None], bytes | None], owner: str | None = None
) -> NodeValue | None:
    """Write what `decide` makes of the value (None: no such znode), and return what is there now, None for no znode.

    `decide` returns None for a znode that stays as it is. `owner`: a znode without which this one means nothing.
    Raises NoNodeError if there is no owner, NodeContendedError, CoordinationUnavailableError, what `decide` raises.
    """
    for _ in range(ATTEMPTS):
        if owner is not None and await client.exists(owner) is None:
            raise NoNodeError(owner, "is missing")
        found = await client.get_or_none(path)
        data = decide(found)
        if data is None:
            return found
        try:
            if found is not None:
                return NodeValue(data, await client.set(path, data, found.version))
            await _create(client, path, data, owner)
        except (BadVersionError, NoNodeError, NodeExistsError, CoordinationLostError):
            continue
        return NodeValue(data, FIRST_VERSION)
    raise NodeContendedError(path, "is changed by others all the time; try again")


async def _create(client: CoordinationClient, path: str, data: bytes, owner: str | None) -> None:
    if owner is None:
        await client.create(path, data)
        return
    parent = path.rpartition("/")[0]
    if await client.exists(parent) is None:  # a transaction makes no parents
        await client.create(parent)
    await client.transaction([CheckNode(path=owner, version=ANY_VERSION), CreateNode(path=path, data=data)])
