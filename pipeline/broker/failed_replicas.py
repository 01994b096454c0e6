"""Failed replicas: other brokers take over what this broker cannot serve because of its disks.

A replica whose log dir failed leaves the ISR, and the leadership, as soon as that is noticed, as it would when the
broker is started again without that disk, and whenever it is elected all the same. First the registration names it, so
that the controller elects others. The only replica of a partition stays where it is: nobody else has it.
"""

from collections.abc import Awaitable, Callable, Collection
from functools import partial

import trio

from pipeline.broker.claims import is_alone, leave
from pipeline.broker.cluster_view import ClusterView
from pipeline.broker.replicas import Replicas
from pipeline.coordination.interface import CoordinationClient
from pipeline.model import BrokerId, TopicPartition


async def leave_what_failed(
    zookeeper: CoordinationClient,
    view: ClusterView,
    replicas: Replicas,
    own: BrokerId,
    announce: Callable[[Collection[TopicPartition]], Awaitable[None]],
) -> None:
    """Leave until cancelled. `announce` tells the controller of all that failed."""
    announced: frozenset[TopicPartition] = frozenset()
    while True:

        def is_due(seen: ClusterView, known: frozenset[TopicPartition] = announced) -> bool:
            return replicas.failed.keys() != known or any(is_needed(seen, name, own) for name in known)

        await _wait_for_either(replicas.wait_for_failures, partial(view.wait_until, is_due))
        failed = frozenset(replicas.failed)
        if failed != announced:
            await announce(failed)
            announced = failed
        lacking = sorted(name for name in failed if is_needed(view, name, own))
        if lacking:
            await leave(zookeeper, view, own, lacking)


def is_needed(view: ClusterView, name: TopicPartition, own: BrokerId) -> bool:
    """True if others count on this replica, and could do without."""
    found = view.partition(name)
    return found is not None and own in found.isr and not is_alone(found.isr, own, len(found.origin_replicas))


async def _wait_for_either(*waits: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:

        async def wait(until: Callable[[], Awaitable[None]]) -> None:
            await until()
            nursery.cancel_scope.cancel()

        for until in waits:
            nursery.start_soon(wait, until)
