"""A client's view of a cluster: brokers, topics, leaders. Pure; `cluster.py` fetches and replaces the view.

Invariants:
- A view never changes; a newer view replaces it.
- The leader epoch of a partition does not fall while the topic's id stays, so that a broker that lags behind cannot
  send the client back to a former leader (KAFKA-7440), unless all brokers report a lower epoch (`fallen_epochs.py`).
"""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from pipeline.model import NO_LEADER_EPOCH, BrokerEndpoint, BrokerId, HostPort, LeaderEpoch, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pipeline.protocol.schema import ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """A partition; `leader` is None if there is none."""

    leader: BrokerId | None
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    replicas: tuple[BrokerId, ...] = ()
    isr: tuple[BrokerId, ...] = ()
    offline_replicas: tuple[BrokerId, ...] = ()
    """Replicas on dead brokers, or lost to a disk of a live one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic that exists. `id` is the zero UUID if the cluster has no topic ids."""

    name: str
    id: uuid.UUID = ZERO_UUID
    is_internal: bool = False
    partitions: Mapping[int, PartitionMetadata] = field(default_factory=dict)

    @property
    def led_partitions(self) -> list[int]:
        """Numbers of the partitions that have a leader, in order."""
        return [number for number, partition in sorted(self.partitions.items()) if partition.leader is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """A state of a cluster as a broker reported it. `errors` has the reasons for missing topics."""

    cluster_id: str | None = None
    controller: BrokerId | None = None
    brokers: Mapping[BrokerId, BrokerEndpoint] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    errors: Mapping[str, ErrorCode] = field(default_factory=dict)

    def knows(self, topic: str) -> bool:
        """Return True if the view has the topic, or the reason why not."""
        return topic in self.topics or topic in self.errors

    def partition_of(self, topic_partition: TopicPartition) -> PartitionMetadata | None:
        """Return the partition, None if the view has none."""
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def leader_of(self, topic_partition: TopicPartition) -> BrokerId | None:
        """Return the partition's leader; None if it is unknown, missing or not registered."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None:
            return None
        partition = topic.partitions.get(topic_partition.partition)
        if partition is None or partition.leader not in self.brokers:
            return None
        return partition.leader

    def leader_epoch_of(self, topic_partition: TopicPartition) -> LeaderEpoch:
        """Return the leader epoch for requests to the partition's leader (KIP-320), -1 for none.

        Clusters without topic ids get none: a recreated topic looks like one that an outdated broker describes, and
        brokers before 2.4 reported outdated epochs during a reassignment (KAFKA-9212).
        """
        topic = self.topics.get(topic_partition.topic)
        if topic is None or topic.id == ZERO_UUID or topic_partition.partition not in topic.partitions:
            return NO_LEADER_EPOCH
        return topic.partitions[topic_partition.partition].leader_epoch

    def topic_ids(self, topics: Iterable[str]) -> dict[str, uuid.UUID]:
        """Return the ids of these topics, the zero UUID for topics that are unknown or have none."""
        return {name: self.topics[name].id if name in self.topics else ZERO_UUID for name in topics}


def merge(
    view: ClusterMetadata, response: MetadataResponse, fallen: Collection[TopicPartition] = frozenset()
) -> ClusterMetadata:
    """Return the view after a Metadata response: its brokers replace all, its topics those of the same name.

    Lower leader epochs of the partitions in `fallen` are accepted.
    """
    topics = dict(view.topics)
    errors = dict(view.errors)
    for topic in response.topics:
        if topic.name is None:
            continue
        if topic.error_code == ErrorCode.NONE:
            topics[topic.name] = _merge_topic(topics.get(topic.name), topic, fallen)
            errors.pop(topic.name, None)
        else:
            errors[topic.name] = ErrorCode.of(topic.error_code)
            if topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
                topics.pop(topic.name, None)
            elif topic.partitions:  # the topic exists, but never had a leader
                topics[topic.name] = _merge_topic(topics.get(topic.name), topic, fallen)
    brokers = {BrokerId(broker.node_id): _endpoint(broker) for broker in response.brokers}
    return replace(
        view,
        cluster_id=response.cluster_id or view.cluster_id,
        controller=BrokerId(response.controller_id) if response.controller_id in brokers else None,
        brokers=brokers or view.brokers,
        topics=topics,
        errors=errors,
    )


def addresses_left(before: ClusterMetadata, after: ClusterMetadata) -> set[HostPort]:
    """Return the addresses at which `before` has a broker and `after` has none."""
    gone = {broker.address for broker in before.brokers.values()}
    return gone - {broker.address for broker in after.brokers.values()}


def _endpoint(broker: MetadataResponseBroker) -> BrokerEndpoint:
    return BrokerEndpoint(id=BrokerId(broker.node_id), address=HostPort(broker.host, broker.port), rack=broker.rack)


def _merge_topic(
    known: TopicMetadata | None, told: MetadataResponseTopic, fallen: Collection[TopicPartition]
) -> TopicMetadata:
    same_topic = known is not None and known.id == told.topic_id
    partitions = {}
    for partition in told.partitions:
        before = known.partitions.get(partition.partition_index) if known is not None and same_topic else None
        after = _partition_view(partition, before)
        stale = before is not None and 0 <= after.leader_epoch < before.leader_epoch
        stale = stale and TopicPartition(told.name or "", partition.partition_index) not in fallen
        partitions[partition.partition_index] = before if before is not None and stale else after
    return TopicMetadata(name=told.name or "", id=told.topic_id, is_internal=told.is_internal, partitions=partitions)


def _partition_view(partition: MetadataResponsePartition, before: PartitionMetadata | None) -> PartitionMetadata:
    """Return the partition as a response has it: `before` itself if nothing has changed, as for most of thousands."""
    leader = BrokerId(partition.leader_id) if partition.leader_id >= 0 else None
    replicas, isr, offline = (
        tuple(cast("Sequence[BrokerId]", brokers))
        for brokers in (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas)
    )
    if (
        before is not None
        and (before.leader, before.leader_epoch) == (leader, partition.leader_epoch)
        and (before.replicas, before.isr, before.offline_replicas) == (replicas, isr, offline)
    ):
        return before
    return PartitionMetadata(
        leader=leader,
        leader_epoch=LeaderEpoch(partition.leader_epoch),
        replicas=replicas,
        isr=isr,
        offline_replicas=offline,
    )
