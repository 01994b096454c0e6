"""Topics and partitions as a simulated ZooKeeper has them, for faults and rules to look at."""

import json
import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pipeline.coordination.znodes import decode_uuid
from pipeline.model import TopicPartition
from pipeline.testing.simulation.state_rules import StateInZooKeeper, decode_state
from pipeline.testing.znodes import Znodes

TOPICS_PATH = "/brokers/topics"


class PartitionZnodes:
    """Reads topics and partitions out of the znodes."""

    def __init__(self, znodes: Znodes) -> None:
        self._znodes = znodes

    def states(self) -> dict[TopicPartition, StateInZooKeeper]:
        """Return the state of each partition that has one."""
        found = {}
        for topic in self._znodes.children(TOPICS_PATH):
            for number in sorted(self._znodes.children(f"{TOPICS_PATH}/{topic}/partitions"), key=int):
                node = self._znodes.find_or_none(f"{TOPICS_PATH}/{topic}/partitions/{number}/state")
                if node is not None:
                    found[TopicPartition(topic, int(number))] = decode_state(node.data)
        return found

    def state(self, topic_partition: TopicPartition) -> StateInZooKeeper | None:
        """Return the state of a partition, None if it has none."""
        topic, partition = topic_partition
        node = self._znodes.find_or_none(f"{TOPICS_PATH}/{topic}/partitions/{partition}/state")
        return None if node is None else decode_state(node.data)

    def all(self) -> list[TopicPartition]:
        """Return all partitions that are assigned to brokers, with a state or without."""
        found = []
        for topic in self._znodes.children(TOPICS_PATH):
            numbers = _decode_topic(self._znodes.by_path[f"{TOPICS_PATH}/{topic}"].data).get("partitions", {})
            found += [TopicPartition(topic, int(number)) for number in sorted(numbers, key=int)]
        return found

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """Return the id of a topic, None if there is no such topic."""
        path = f"{TOPICS_PATH}/{topic}"
        node = self._znodes.find_or_none(path)
        text = None if node is None else _decode_topic(node.data).get("topic_id")
        return None if text is None else decode_uuid(path, text)

    def replica_ids(self, topic_partition: TopicPartition) -> tuple[int, ...]:
        """Return the brokers that a partition is assigned to."""
        return self._assigned(topic_partition, "partitions")

    def origin_ids(self, topic_partition: TopicPartition) -> tuple[int, ...]:
        """Return the brokers of a partition without those that a reassignment adds."""
        adding = self._assigned(topic_partition, "adding_replicas")
        return tuple(broker for broker in self.replica_ids(topic_partition) if broker not in adding)

    def _assigned(self, topic_partition: TopicPartition, how: str) -> tuple[int, ...]:
        node = self._znodes.find_or_none(f"{TOPICS_PATH}/{topic_partition.topic}")
        assigned = _decode_topic(node.data).get(how, {}) if node is not None else {}
        return tuple(assigned.get(str(topic_partition.partition), ()))


@lru_cache(maxsize=1024)
def _decode_topic(data: bytes) -> Mapping[str, Any]:
    """Return the content of a topic's znode, which nobody changes."""
    decoded: Mapping[str, Any] = json.loads(data)
    return decoded
