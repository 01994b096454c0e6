"""Leader epochs that fell: ZooKeeper was restored from a backup while all brokers were down, and nobody knows the newer
ones any more. Pure; the client's own memory of them must not keep it from the partition for ever.

Invariant: a lower epoch counts only if all brokers that answer tell one, and none has told the known one, for
`FALLEN_AFTER_S`. A broker that lags alone, or that learns in that time what it missed, sends nobody back.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from pipeline.client.cluster.metadata import ClusterView
from pipeline.model import HostPort, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.metadata import MetadataResponse

FALLEN_AFTER_S = 30.0
"""Brokers that remember newer states than ZooKeeper have written them again by then (decision 0045)."""


@dataclass(slots=True)
class _Doubt:
    """Since when a lower epoch than the known one is told, and by whom."""

    since_s: float
    told_by: set[HostPort] = field(default_factory=set)


class FallenEpochs:
    """What the brokers have told of partitions whose leader epoch seems to have fallen."""

    def __init__(self) -> None:
        self._doubts: dict[TopicPartition, _Doubt] = {}

    def note(
        self,
        view: ClusterView,
        response: MetadataResponse,
        told_by: HostPort,
        answering: Collection[HostPort],
        now_s: float,
    ) -> frozenset[TopicPartition]:
        """Take note of what a broker told, before it is merged; returns the partitions whose lower epoch counts.

        `answering` are the brokers that all have to tell it.
        """
        fallen = set()
        for topic in response.topics:
            known = view.topics.get(topic.name or "")
            if known is None or topic.error_code not in {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}:
                continue
            for partition in topic.partitions:
                name = TopicPartition(known.name, partition.partition_index)
                before = known.partitions.get(name.partition)
                is_lower = before is not None and 0 <= partition.leader_epoch < before.leader_epoch
                if not is_lower or known.id != topic.topic_id:
                    self._doubts.pop(name, None)
                    continue
                doubt = self._doubts.setdefault(name, _Doubt(now_s))
                doubt.told_by.add(told_by)
                if now_s - doubt.since_s >= FALLEN_AFTER_S and doubt.told_by.issuperset(answering):
                    fallen.add(name)
                    del self._doubts[name]
        return frozenset(fallen)
