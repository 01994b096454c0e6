"""Changes one znode by compare-and-set: read, decide, and write unless another client wrote meanwhile.

A write that was refused, or whose answer was lost, is decided again at once on the new value, up to `ATTEMPTS` times.
So `decide` may be called with its own change, if that was written although its answer was lost.

Transactions over several znodes and ephemeral znodes follow rules of their own: `partition_states`, `deleted_topics`,
`registration`, and the broker's changes of topics and elections.
"""

from collections.abc import Callable

from pipeline.coordination.interface import ANY_VERSION, CheckNode, CoordinationClient, CreateNode, NodeValue
from pipeline.errors import BadVersionError, CoordinationLostError, NodeContendedError, NodeExistsError, NoNodeError

ATTEMPTS = 5
FIRST_VERSION = 0


async def update(
    client: CoordinationClient, path: str, decide: Callable[[NodeValue | None], bytes | None], owner: str | None = None
) -> NodeValue | None:
    """Write the data that `decide` returns for the present value (None: no znode), and return the value afterwards.

    If `decide` returns None, nothing is written. `owner` is a znode without which this one must not be created. Raises
    NoNodeError if the owner is missing, NodeContendedError, CoordinationUnavailableError, and what `decide` raises.
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
