"""What clients are told of a topic that is being made."""

import uuid

from pipeline.broker.cluster.view import ClusterView, PartitionView, TopicView
from pipeline.broker.requests.handlers.metadata import describe_topic, is_known, is_listed
from pipeline.broker.settings.topic import TopicSettings
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


def test_metadata_lists_all_partitions_since_clients_count_them() -> None:
    described = describe_topic(topic(LED, NEW, LED), view(ONE))
    assert described.error_code == ErrorCode.NONE
    told = [(partition.error_code, partition.leader_id, partition.replica_nodes) for partition in described.partitions]
    assert told == [(0, 1, (ONE,)), (ErrorCode.LEADER_NOT_AVAILABLE, -1, (ONE,)), (0, 1, (ONE,))]


def test_a_topic_that_cannot_be_led_is_not_hidden() -> None:
    made = topic(NEW, NEW)
    described = describe_topic(made, view(ONE))
    assert (described.error_code, len(described.partitions)) == (ErrorCode.LEADER_NOT_AVAILABLE, 2)
    assert is_listed(made, view(ONE)), "there is no controller"
    seen = view(ONE)
    seen.set_controller(ONE)
    assert not is_listed(made, seen), "it is about to be led"
    assert is_listed(topic(NEW, PartitionView(replicas=(BrokerId(2),))), seen)
    seen.set_controller(BrokerId(2))
    assert is_listed(made, seen), "the controller is dead"


def test_a_leader_that_is_gone_is_told() -> None:
    (partition,) = describe_topic(topic(LED), view()).partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


def test_a_replica_that_a_disk_lost_is_offline_though_its_broker_is_alive() -> None:
    seen = view(ONE)
    seen.set_offline_replicas(ONE, frozenset({TopicPartition("t", 1)}))
    sound, lost = describe_topic(topic(LED, LED), seen).partitions
    assert (sound.offline_replicas, lost.offline_replicas) == ((), (ONE,))
