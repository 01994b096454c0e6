"""Lets others take over what the disks of this broker do not let it keep.

A replica whose log dir failed leaves the ISR, and the leadership, as soon as that is noticed, as it would when the
broker is started again without that disk. The only replica of a partition stays where it is: nobody else has it.
"""

from pipeline.broker.claims import leave
from pipeline.broker.cluster_view import ClusterView
from pipeline.broker.replicas import Replicas
from pipeline.coordination.interface import CoordinationClient
from pipeline.model import BrokerId, TopicPartition


async def leave_what_failed(
    zookeeper: CoordinationClient, view: ClusterView, replicas: Replicas, own: BrokerId
) -> None:
    """Leave until cancelled."""
    while True:
        await replicas.wait_for_failures()
        lacking = [name for name in replicas.failed if _is_needed(view, name, own)]
        if lacking:
            await leave(zookeeper, view, own, lacking)


def _is_needed(view: ClusterView, name: TopicPartition, own: BrokerId) -> bool:
    """Whether others count on this replica, and could do without."""
    found = view.partition(name)
    return found is not None and own in found.isr and len(found.replicas) > 1
