"""The partition that the tests send to."""

from typing import Any

from pipeline.model import TopicPartition
from tests.support.scripted_broker import ScriptedCluster

T0 = TopicPartition("t", 0)
DEADLINE_S = 60


def values(scripted: ScriptedCluster, topic_partition: TopicPartition = T0) -> Any:
    return [record.value for record in scripted.partition(topic_partition).records()]
