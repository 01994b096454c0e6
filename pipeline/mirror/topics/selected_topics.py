"""Topics of all sources that flows select, as of each source's last answer, and the names of their replicas.

Invariant: a topic that the partition table knows keeps its replica. A changed `replica.topic` moves nothing, and new
partitions of the topic join the others.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.client.cluster.metadata import ClusterMetadata, TopicMetadata
from pipeline.diagnostics import get_logger
from pipeline.mirror.config import CompressionType
from pipeline.mirror.journals.table import TABLE_TOPIC, PartitionTable
from pipeline.mirror.topics.flows import Flow, SourceFlows

MAX_REMARKS_SHOWN = 100

logger = get_logger(__name__)


class SelectedTopics:
    """The selected topics by source."""

    def __init__(self, table: PartitionTable) -> None:
        self._flows: dict[str, SourceFlows] = {}
        self._table = table
        self._topics: dict[str, dict[str, TopicMetadata]] = {}
        self._feeding: dict[str, dict[str, list[str]]] = {}
        """Topics of each source by the name of their replica."""
        self._without: dict[str, set[str]] = {}
        """Topics of each source that can have no replica."""

    def set_flows(self, flows: Mapping[str, SourceFlows]) -> None:
        """Have these sources, in this order. Topics that no flow selects now are left out."""
        self._flows = dict(flows)
        topics, self._topics, self._feeding = self._topics, {}, {}
        self._without = {name: self._without.get(name, set()) for name in flows}
        for name in flows:
            self.take(name, topics.get(name, {}))

    def of(self, source: str) -> Mapping[str, TopicMetadata]:
        """Return the selected topics of a source."""
        return self._topics[source]

    def is_selected(self, source: str, topic: str) -> bool:
        """Return True if a flow of the source selects the topic."""
        return self._flows[source].flow_of(topic) is not None

    def choose(self, source: str, view: ClusterMetadata) -> dict[str, TopicMetadata]:
        """Return the topics of a source's answer that flows select."""
        return {topic.name: topic for topic in view.topics.values() if self.is_selected(source, topic.name)}

    def take(self, source: str, topics: Mapping[str, TopicMetadata]) -> None:
        """Keep these topics of a source as far as flows select them, with the replicas that the table has for them."""
        topics = {name: topic for name, topic in topics.items() if self.is_selected(source, name)}
        self._topics[source] = topics
        feeding: dict[str, list[str]] = {}
        without: set[str] = set()
        for topic in sorted(topics):
            replica = self.replica_of(source, topic)
            if replica is not None:
                feeding.setdefault(replica, []).append(topic)
            else:
                without.add(topic)
        for topic in sorted(without - self._without[source]):
            flow = self._flows[source].selecting(topic)[0]
            logger.warning("topic_not_copied", source=source, flow=flow.name, topic=topic, error=flow.refusal_of(topic))
        self._feeding[source], self._without[source] = feeding, without

    def compression_of(self, source: str, topic: str) -> CompressionType:
        """Return the codec of a topic's batches in its replica; that of the source if no flow selects the topic."""
        flows = self._flows.get(source)
        flow = None if flows is None else flows.flow_of(topic)
        return CompressionType.PRODUCER if flow is None else flow.compression_type

    def replica_of(self, source: str, topic: str) -> str | None:
        """Return the replica of a topic: that of the table, else that of the settings; None if there can be none."""
        recorded = self._table.replica_of(source, topic)
        if recorded is not None:
            return recorded
        flow = self._flows[source].flow_of(topic)
        return None if flow is None or flow.refusal_of(topic) is not None else flow.replica_of(topic)

    def sources_of(self, replica: str) -> list[str]:
        """Return the sources that have topics for a replica now."""
        return [source for source, feeding in self._feeding.items() if replica in feeding]

    def topics_of(self, source: str, replica: str) -> list[str]:
        """Return the topics of a source whose replica this is now, or was."""
        recorded = {topic for name, topic in self._table.topics_of(replica) if name == source}
        return sorted(recorded.union(self._feeding[source].get(replica, ())))

    def flows(self) -> list[dict[str, Any]]:
        """Return the entries of `flows` in the status."""
        remarks: dict[str, list[dict[str, Any]]] = {}
        counts: dict[str, int] = {}
        for source, topics in self._topics.items():
            for topic in topics:
                first, *others = self._flows[source].selecting(topic)
                counts[first.name] = counts.get(first.name, 0) + 1
                for flow, remark, is_copied in self._remarks_on(topic, first, others):
                    entry = {"topic": topic, "remark": remark, "is_copied": is_copied}
                    remarks.setdefault(flow.name, []).append(entry)
        for flow in (flow for flows in self._flows.values() for flow in flows.flows):
            remarks.setdefault(flow.name, []).extend(
                {"topic": topic, "remark": f"not copied: {reason}", "is_copied": False}
                for topic, reason in flow.selection.slow.items()
            )
        return [
            {
                "name": flow.name,
                "source": flow.source,
                "replica_topic": flow.template,
                "gap_policy": flow.gap_policy.value,
                "compression_type": flow.compression_type.value,
                "throttle_bytes_per_second": flow.throttle_bytes_per_s,
                "topics": counts.get(flow.name, 0),
                "remarks": sorted(found, key=lambda entry: entry["is_copied"])[:MAX_REMARKS_SHOWN],
                "remark_count": len(found),
            }
            for flows in self._flows.values()
            for flow in flows.flows
            for found in [remarks.get(flow.name, [])]
        ]

    def _remarks_on(self, topic: str, first: Flow, others: list[Flow]) -> Iterator[tuple[Flow, str, bool]]:
        """Yield flow, remark, and True if the topic is copied, for what is not as the settings ask."""
        recorded, refusal = self._table.replica_of(first.source, topic), first.refusal_of(topic)
        if recorded is None and refusal is not None:
            yield first, f"not copied: {refusal}", False
        elif recorded is not None and recorded != first.replica_of(topic):
            replica = f"its replica is {recorded}, recorded in {TABLE_TOPIC}"
            yield first, f"{replica}; the setting asks for {first.replica_of(topic)}", True
        for flow in others:
            yield flow, f"copied by the flow {first.name}, which stands before this one in the settings", True
