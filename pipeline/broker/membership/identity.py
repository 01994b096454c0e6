"""The cluster id of this broker: determined at the start, and compared with ZooKeeper's from then on.

Invariants:

- A broker whose log dirs belong to a cluster never creates another cluster id.
- A broker does not join while ZooKeeper has no cluster id: its tree is empty, or not restored yet. The broker waits,
  and removes nothing. A broker that would join and finds the id of another cluster ends.
- A broker with a live session reports a wrong id and goes on: the session belongs to the ZooKeeper that the broker
  joined, so only the znode is wrong. Otherwise one wrong write would end all brokers at once.
"""

import random
import uuid

from pipeline.broker.cluster.view import ClusterView
from pipeline.coordination.interface import CoordinationClient, NodeValue
from pipeline.coordination.znodes import ClusterId, encode_uuid
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, CoordinationError, CoordinationLostError, NodeExistsError

MISSING = (
    f"ZooKeeper has no {ClusterId.PATH} that can be read: it lost its data, or they are not restored yet. A broker"
    " whose session ends waits for them, and removes nothing. Restore ZooKeeper's data"
)

logger = get_logger(__name__)


async def find_cluster_id(zookeeper: CoordinationClient, rng: random.Random, own: str | None) -> str:
    """Return the cluster id, which the first broker creates. `own` is the id in the broker's log dirs.

    Raises ConfigurationError if the log dirs have an id and ZooKeeper has none, CoordinationError.
    """
    while True:
        found = await zookeeper.get_or_none(ClusterId.PATH)
        if found is not None:
            return ClusterId.decode(found.data).id
        if own is not None:
            example = ClusterId(id=own).encode().decode()
            raise ConfigurationError(
                "zookeeper.connect",
                f"ZooKeeper has no {ClusterId.PATH} there, but log.dirs belong to cluster {own}: it lost its data,"
                f" or its address or chroot is wrong. Restore its data. If they are lost for good, write {example} to"
                f" {ClusterId.PATH}: the brokers then start without topics, and keep the logs as strays",
            )
        made = ClusterId(id=encode_uuid(uuid.UUID(int=rng.getrandbits(128), version=4)))
        try:
            await zookeeper.create(ClusterId.PATH, made.encode())
        except (NodeExistsError, CoordinationLostError):
            continue


async def wait_for_cluster(zookeeper: CoordinationClient, own: str) -> None:
    """Return once ZooKeeper holds the id of this cluster. Raises ConfigurationError once it holds another id."""
    async for value in zookeeper.watch_data(ClusterId.PATH):
        found = _read(value)
        if found == own:
            return
        if found is not None:
            raise ConfigurationError("zookeeper.connect", _foreign(found, own))


async def watch_cluster_id(zookeeper: CoordinationClient, view: ClusterView) -> None:
    """Report a missing or wrong cluster id in the log and in the view, until cancelled."""
    async for value in zookeeper.watch_data(ClusterId.PATH):
        found = _read(value)
        if found is None:
            view.problem = MISSING
        elif found != view.cluster_id:
            view.problem = _foreign(found, view.cluster_id)
            logger.error("cluster_id_foreign", path=ClusterId.PATH, found=found, own=view.cluster_id)
        else:
            view.problem = None


def _foreign(found: str, own: str) -> str:
    return f"ZooKeeper tells of cluster {found} by now, and this broker belongs to {own}; its logs are untouched"


def _read(value: NodeValue | None) -> str | None:
    """Return the cluster id, None if it is missing or unreadable."""
    try:
        found = None if value is None else ClusterId.decode(value.data).id
    except CoordinationError as error:
        logger.error("cluster_id_unreadable", error=str(error))
        return None
    if found is None:
        logger.error(
            "cluster_id_missing",
            path=ClusterId.PATH,
            reason="ZooKeeper lost its data, or they are not restored yet; nothing is removed, and nobody joins",
            advice="restore ZooKeeper's data; docs/operations.md says what to do if they are lost for good",
        )
    return found
