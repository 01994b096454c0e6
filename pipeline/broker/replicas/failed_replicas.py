"""Failed replicas: hands partitions that this broker cannot serve because of its disks to other brokers.

A replica whose log dir failed leaves the ISR, and the leadership, as soon as that is noticed, as it would when the
broker is started again without that disk, and again whenever it is elected. First the registration names the replica,
so that the controller elects others. The last in-sync replica stays in the ISR without leading: no other has all
records, and its log may be whole once the disk is repaired.

The registration also names logs that may lack their tail, from the start on (`lost_replicas`): strays, whose topic may
come back, and those of topics that are back, until their ISRs are left.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from pipeline.broker.cluster.own_states import leave_unreadable
from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.replicas.replicas import Replicas
from pipeline.broker.replicas.strays import StrayKeeper
from pipeline.coordination.interface import CoordinationClient
from pipeline.model import BrokerId, TopicPartition


async def leave_what_failed(
    zookeeper: CoordinationClient,
    view: ClusterView,
    replicas: Replicas,
    strays: StrayKeeper,
    own: BrokerId,
    announce: Callable[[], Awaitable[None]],
) -> None:
    """Leave what failed, until cancelled. `announce` registers failed replicas, and logs that may lack their tail."""

    def is_due(seen: ClusterView) -> bool:
        return any(is_needed(seen, topic_partition, own) for topic_partition in replicas.failed)

    while True:
        await _wait_for_either(
            replicas.failures_changed.wait_and_clear, strays.looked.wait_and_clear, partial(view.wait_until, is_due)
        )
        await announce()
        needed = sorted(topic_partition for topic_partition in replicas.failed if is_needed(view, topic_partition, own))
        if needed:
            await leave_unreadable(zookeeper, view, own, needed)


def is_needed(view: ClusterView, topic_partition: TopicPartition, own: BrokerId) -> bool:
    """True if this replica must leave the leadership, or an ISR with other members."""
    found = view.partition(topic_partition)
    return found is not None and own in found.isr and (found.leader == own or len(found.isr) > 1)


async def _wait_for_either(*waits: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:

        async def wait(until: Callable[[], Awaitable[None]]) -> None:
            await until()
            nursery.cancel_scope.cancel()

        for until in waits:
            nursery.start_soon(wait, until)
