"""ZooKeeper that lacks what it had: a topic's znodes vanish, an older snapshot is restored, all is empty.

What is missing comes back some time later. Rule: no broker removes a log for what ZooKeeper lacks (`removal_rules`),
and all that was acknowledged is there when the topic is back.

Nothing else goes wrong meanwhile: the states that come back must be true. An older snapshot is one of a cluster that
was whole then and is whole now. An administrator may be at work: topics, their deletions and the assignments of their
replicas must be the same in the snapshot, since a move or a deletion that is over has removed logs.
"""

from collections.abc import Awaitable, Callable

import trio

from pipeline.coordination.deleted_topics import DeletedTopic
from pipeline.testing.simulation.fault_context import WHOLE_TIMEOUT_S, FaultContext, FaultKinds
from pipeline.testing.simulation.zookeeper import TOPICS_PATH

WHOLE_AGAIN_S = 30.0
AGE_S = (0.3, 2.0)
HANDOVERS = (1, 1, 4)
"""Changes of leaders since the snapshot, with so long between two: states get versions that come again."""
ASSIGNED_PATHS = (TOPICS_PATH, DeletedTopic.PARENT)
"""Whatever an administrator changes is below these."""


async def lose_topic(context: FaultContext) -> None:
    """The znodes of a topic vanish for a while."""

    async def lose() -> None:
        zookeeper, path = context.cluster.zookeeper, f"{TOPICS_PATH}/{context.rng.choice(context.topics)}"
        context.tell(f"{path} vanishes")
        znodes = zookeeper.snapshot(path)
        zookeeper.lose(path)
        await context.outage()
        context.tell(f"{path} is back")
        zookeeper.put_back(znodes)

    await _alone(context, lose)


async def go_back(context: FaultContext) -> None:
    """ZooKeeper is restored from a snapshot that is some seconds old. Leaders may have changed since."""

    async def restore() -> None:
        zookeeper = context.cluster.zookeeper
        znodes, topics = zookeeper.snapshot(), zookeeper.contents(*ASSIGNED_PATHS)
        for _ in range(context.rng.choice(HANDOVERS)):
            leader, _ = context.leader_and_another()
            if leader is not None and leader.client is not None:
                context.tell(f"the session of {leader.name} expires")
                leader.client.expire_session()
            await trio.sleep(context.rng.uniform(*AGE_S))
            await context.wait_until(context.is_whole, WHOLE_TIMEOUT_S)
        if context.is_whole() and topics == zookeeper.contents(*ASSIGNED_PATHS):
            context.tell("zookeeper is restored from an older snapshot")
            zookeeper.go_back(znodes)

    await _alone(context, restore)


async def be_empty(context: FaultContext) -> None:
    """ZooKeeper is empty for a while."""

    async def restore() -> None:
        znodes = context.cluster.zookeeper.snapshot()
        context.tell("zookeeper is empty")
        context.cluster.zookeeper.go_back({})
        await context.outage()
        context.tell("zookeeper is restored")
        context.cluster.zookeeper.go_back(znodes)

    await _alone(context, restore)


async def _alone(context: FaultContext, fault: Callable[[], Awaitable[None]]) -> None:
    """Perform it while the cluster is whole; nothing else happens before the cluster is whole again."""
    context.is_exclusive = True
    try:
        if await context.wait_until(lambda: context.active == 1 and context.is_whole(), WHOLE_TIMEOUT_S):
            with trio.CancelScope(shield=True):
                await fault()
                await context.wait_until(context.is_whole, WHOLE_AGAIN_S)
    finally:
        context.is_exclusive = False


KINDS: FaultKinds = {
    "topic vanishes": lose_topic,
    "zookeeper restored": go_back,
    "zookeeper empty": be_empty,
}
