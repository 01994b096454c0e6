"""What clients are told of a topic that is being made."""

import uuid

from pipeline.broker.cluster_view import PartitionView, TopicView
from pipeline.broker.handlers.metadata import describe_topic, is_known
from pipeline.broker.topic_settings import TopicSettings
from pipeline.model import BrokerId, LeaderEpoch
from pipeline.protocol.errors import ErrorCode

ONE = BrokerId(1)
NEW = PartitionView(replicas=(ONE,))
LED = PartitionView(replicas=(ONE,), leader=ONE, leader_epoch=LeaderEpoch(0), isr=(ONE,), state_version=0)
SETTINGS = TopicSettings.model_construct()


def topic(*partitions: PartitionView) -> TopicView:
    return TopicView(name="t", topic_id=uuid.uuid4(), partitions=dict(enumerate(partitions)), settings=SETTINGS)


def test_a_topic_is_told_once_a_partition_had_a_leader() -> None:
    assert not is_known(topic(NEW, NEW))
    assert is_known(topic(LED, NEW))


def test_partitions_that_had_no_leader_yet_are_not_told() -> None:
    described = describe_topic(topic(LED, NEW, LED), [ONE])
    assert [partition.partition_index for partition in described.partitions] == [0, 2]


def test_a_leader_that_is_gone_is_told() -> None:
    (partition,) = describe_topic(topic(LED), []).partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
