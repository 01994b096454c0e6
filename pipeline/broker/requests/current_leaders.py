"""Present leaders of partitions that moved, as errors name them (KIP-951).

The client goes there at once. A Metadata request could reach a broker that does not know the new leader yet.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from pipeline.broker.cluster.view import ClusterView, TopicView
from pipeline.model import BrokerEndpoint, BrokerId, LeaderEpoch
from pipeline.protocol.errors import ErrorCode

MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""The errors that name the present leader."""


class CurrentLeader(NamedTuple):
    """The broker that leads a partition, and its leader epoch."""

    broker: BrokerEndpoint
    epoch: LeaderEpoch


def find_current_leader(view: ClusterView, own: BrokerId, topic: TopicView | None, index: int) -> CurrentLeader | None:
    """Return the leader of a partition; None if the view knows no live leader, or if this broker (`own`) leads."""
    partition = None if topic is None else topic.partitions.get(index)
    if partition is None or partition.leader == own:
        return None
    broker = view.brokers.get(partition.leader)
    return None if broker is None else CurrentLeader(broker, partition.leader_epoch)


def with_addresses(view: ClusterView, listener: str, answer: Any) -> Any:
    """Return an answer of Produce or Fetch whose leaders have their addresses on a listener. Others are left out."""
    if not answer.node_endpoints:
        return answer
    named = []
    for node in answer.node_endpoints:
        broker = view.brokers.get(BrokerId(node.node_id))
        address = None if broker is None else broker.address_on(listener)
        if address is not None:
            named.append(replace(node, host=address.host, port=address.port))
    return replace(answer, node_endpoints=tuple(named))
