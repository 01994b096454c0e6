"""What clients are told of a topic that is being made."""

import uuid

from pipeline.broker.cluster_view import ClusterView, PartitionView, TopicView
from pipeline.broker.handlers.metadata import describe_topic, is_known
from pipeline.broker.topic_settings import TopicSettings
from pipeline.model import BrokerEndpoint, BrokerId, HostPort, LeaderEpoch, TopicPartition
from pipeline.protocol.errors import ErrorCode

ONE = BrokerId(1)
NEW = PartitionView(replicas=(ONE,))
LED = PartitionView(replicas=(ONE,), leader=ONE, leader_epoch=LeaderEpoch(0), isr=(ONE,), state_version=0)
SETTINGS = TopicSettings.model_construct()


def topic(*partitions: PartitionView) -> TopicView:
    return TopicView(name="t", topic_id=uuid.uuid4(), partitions=dict(enumerate(partitions)), settings=SETTINGS)


def view(*brokers: BrokerId) -> ClusterView:
    found = ClusterView("c")
    found.set_brokers({broker: BrokerEndpoint(id=broker, address=HostPort("h", 1), rack=None) for broker in brokers})
    return found


def test_a_topic_is_told_once_a_partition_had_a_leader() -> None:
    assert not is_known(topic(NEW, NEW))
    assert is_known(topic(LED, NEW))


def test_partitions_that_had_no_leader_yet_are_not_told() -> None:
    described = describe_topic(topic(LED, NEW, LED), view(ONE))
    assert [partition.partition_index for partition in described.partitions] == [0, 2]


def test_a_leader_that_is_gone_is_told() -> None:
    (partition,) = describe_topic(topic(LED), view()).partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


def test_a_replica_that_a_disk_lost_is_offline_though_its_broker_is_alive() -> None:
    seen = view(ONE)
    seen.set_offline_replicas(ONE, frozenset({TopicPartition("t", 1)}))
    sound, lost = describe_topic(topic(LED, LED), seen).partitions
    assert (sound.offline_replicas, lost.offline_replicas) == ((), (ONE,))
