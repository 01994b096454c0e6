"""Leader epochs that fell, since ZooKeeper was restored from a backup while all brokers were down. Pure.

No broker knows the newer epochs any more, and the client's memory of them must not exclude it for ever.

Invariant: a lower epoch counts only if for `FALLEN_AFTER_S` all brokers that answer report one and none the known
epoch. A broker that lags alone, or catches up in that time, has no effect.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.model import HostPort, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.metadata import MetadataResponse

FALLEN_AFTER_S = 30.0
"""Time in which brokers that remember newer states have written them to ZooKeeper again (decision 0045)."""


@dataclass(slots=True)
class _Doubt:
    """Start of the reports of a lower epoch, and the brokers that report it."""

    since_s: float
    told_by: set[HostPort] = field(default_factory=set)


class FallenEpochs:
    """Reports of brokers about partitions whose leader epoch seems to have fallen."""

    def __init__(self) -> None:
        self._doubts: dict[TopicPartition, _Doubt] = {}

    def note(
        self,
        view: ClusterMetadata,
        response: MetadataResponse,
        told_by: HostPort,
        answering: Collection[HostPort],
        now_s: float,
    ) -> frozenset[TopicPartition]:
        """Note a broker's response before it is merged; return the partitions whose lower epoch counts.

        `answering` are the brokers that must all report it.
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
