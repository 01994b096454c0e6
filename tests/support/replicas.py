"""Partitions that are assigned to a broker by hand."""

import uuid

from pipeline.broker.cluster.view import PartitionView
from pipeline.broker.replicas.logs import AssignedPartition
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import topic_settings
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition

OWN, OTHER = BrokerId(1), BrokerId(2)
TOPIC_ID = uuid.UUID(int=7)
CONFIG = BrokerConfig.from_settings({"broker.id": 1, "log.dirs": "/nowhere", "zookeeper.connect": "z:1"})


def assigned(
    index: int = 0,
    *,
    leader: int,
    epoch: int,
    isr: tuple[int, ...] = (1, 2),
    topic_id: uuid.UUID = TOPIC_ID,
    **overrides: str,
) -> AssignedPartition:
    return AssignedPartition(
        topic_partition=TopicPartition("t", index),
        topic_id=topic_id,
        settings=topic_settings({name.replace("_", "."): value for name, value in overrides.items()}, CONFIG),
        view=PartitionView(
            replicas=(OWN, OTHER),
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(epoch),
            isr=tuple(BrokerId(number) for number in isr),
        ),
    )
