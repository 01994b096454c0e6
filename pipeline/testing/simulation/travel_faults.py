"""ZooKeeper that lacks what it had: a topic's znodes vanish, an older snapshot is restored, all is empty.

What is missing comes back some time later. Rule: no broker removes a log for what ZooKeeper lacks (`removal_rules`),
and all that was acknowledged is there when the topic is back.

Nothing else goes wrong meanwhile: the states that come back must be true. An older snapshot is one of a cluster that
was whole then and is whole now. An administrator may be at work: topics, their deletions and the assignments of their
replicas must be the same in the snapshot, since a move or a deletion that is over has removed logs.

States of single partitions vanish, or are set back, as by hand. Nobody brings them back but the brokers that remember
them (decision 45). Rule: such a state is written again within 30 s, as a successor of the one that was lost.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import trio

from pipeline.coordination.deleted_topics import DeletedTopic
from pipeline.coordination.znodes import partition_state_path
from pipeline.model import TopicPartition
from pipeline.testing.simulation.fault_context import WHOLE_TIMEOUT_S, FaultContext, FaultKinds
from pipeline.testing.simulation.partition_znodes import TOPICS_PATH

WHOLE_AGAIN_S = 30.0
AGE_S = (0.3, 2.0)
HANDOVERS = (1, 1, 4)
"""Changes of leaders since the snapshot, with so long between two: states get versions that come again."""
WRITTEN_AGAIN_S = 35.0
"""Brokers compare states with ZooKeeper every 30 s, and write at once what is missing."""
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
            if leader is not None and leader.connection is not None:
                context.tell(f"the session of {leader.name} expires")
                leader.connection.expire_session()
            await trio.sleep(context.rng.uniform(*AGE_S))
            await context.wait_until(context.is_whole, WHOLE_TIMEOUT_S)
        if context.is_whole() and topics == zookeeper.contents(*ASSIGNED_PATHS):
            context.tell("zookeeper is restored from an older snapshot")
            zookeeper.go_back(znodes)

    await _alone(context, restore)


async def lose_state(context: FaultContext) -> None:
    """The state of a partition vanishes, most often of one that nobody writes: its preferred leader leads it."""

    async def lose() -> None:
        states = context.cluster.states()
        preferred = [name for name, state in states.items() if context.cluster.replica_ids(name)[0] == state.leader]
        await _tamper(context, context.rng.choice(preferred or list(states)), None, "vanishes")

    await _while_whole(context, lose)


async def set_state_back(context: FaultContext) -> None:
    """The state of a partition is set back to one of an earlier leader epoch, with its version or a newer one."""

    async def set_back() -> None:
        zookeeper = context.cluster.zookeeper
        led = {name: state for name, state in context.cluster.states().items() if state.leader >= 0}
        name = context.rng.choice(list(led))
        leader, path = context.cluster.machine(led[name].leader), _state_path(name)
        older = zookeeper.znodes.find(path)
        if leader is not None and leader.connection is not None:
            context.tell(f"the session of {leader.name} expires")
            leader.connection.expire_session()
        await trio.sleep(context.rng.uniform(*AGE_S))
        await context.wait_until(context.is_whole, WHOLE_TIMEOUT_S)
        if context.is_whole() and context.cluster.states()[name].leader_epoch > led[name].leader_epoch:
            if context.rng.random() < 0.5:
                older = replace(older, version=zookeeper.znodes.find(path).version + 1)
            await _tamper(context, name, older, f"is set back to {older.data.decode()}, version {older.version}")

    await _while_whole(context, set_back)


async def _tamper(context: FaultContext, name: TopicPartition, znode: Any | None, what: str) -> None:
    """Change the znode of a state; wait until the state is written again, and demand that this happens in time."""
    lost = context.cluster.states()[name]

    def is_written_again() -> bool:
        now = context.cluster.states().get(name)
        return now is not None and now.leader_epoch > lost.leader_epoch

    def judge() -> None:
        if not is_written_again():
            context.problems.append(f"the state of {name} {what}, and is not written again: {lost} was lost")

    context.tell(f"the state of {name} {what}: {lost} is lost")
    context.cluster.zookeeper.tamper(_state_path(name), znode)
    context.cluster.schedule.after(WRITTEN_AGAIN_S, judge)
    await context.wait_until(is_written_again, math.inf)


def _state_path(name: TopicPartition) -> str:
    return partition_state_path(name.topic, name.partition)


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

    async def shielded() -> None:
        with trio.CancelScope(shield=True):
            await fault()
            await context.wait_until(context.is_whole, WHOLE_AGAIN_S)

    await _while_whole(context, shielded)


async def _while_whole(context: FaultContext, fault: Callable[[], Awaitable[None]]) -> None:
    """Perform it while the cluster is whole, and nothing else meanwhile."""
    context.is_exclusive = True
    try:
        if await context.wait_until(lambda: context.active == 1 and context.is_whole(), WHOLE_TIMEOUT_S):
            await fault()
    finally:
        context.is_exclusive = False


KINDS: FaultKinds = {
    "topic vanishes": lose_topic,
    "zookeeper restored": go_back,
    "zookeeper empty": be_empty,
    "state vanishes": lose_state,
    "state set back": set_state_back,
}
