import uuid

from pipeline.client.cluster.metadata import ClusterMetadata, merge
from pipeline.model import NO_LEADER_EPOCH, BrokerId, HostPort, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pipeline.protocol.schema import ZERO_UUID
from tests.unit.client.cluster.conftest import BROKERS, ID, T0, response


def test_names_brokers_controller_and_leaders() -> None:
    view = merge(ClusterMetadata(), response(1, 0))
    assert (view.cluster_id, view.controller, view.leader_of(T0)) == ("c", 2, 1)
    assert view.brokers[BrokerId(2)].address == HostPort("h", 9002)
    assert view.topic_ids(["t", "other"]) == {"t": ID, "other": ZERO_UUID}
    assert view.leader_of(TopicPartition("t", 1)) is None
    assert view.leader_of(TopicPartition("u", 0)) is None


def test_an_older_leader_epoch_changes_nothing_unless_the_topic_is_another() -> None:
    view = merge(ClusterMetadata(), response(2, 5))
    assert merge(view, response(1, 4)).leader_of(T0) == 2
    assert merge(view, response(1, 5)).leader_of(T0) == 1
    assert merge(view, response(1, -1)).leader_of(T0) == 1
    assert merge(view, response(1, 0, topic_id=uuid.UUID(int=8))).leader_of(T0) == 1


def test_leader_epochs_are_those_of_the_newest_metadata_of_a_topic_with_an_id() -> None:
    assert ClusterMetadata().leader_epoch_of(T0) == NO_LEADER_EPOCH
    view = merge(ClusterMetadata(), response(2, 5))
    assert view.leader_epoch_of(T0) == 5
    assert view.leader_epoch_of(TopicPartition("t", 1)) == NO_LEADER_EPOCH
    assert merge(view, response(1, 4)).leader_epoch_of(T0) == 5
    assert merge(view, response(2, 6)).leader_epoch_of(T0) == 6
    assert merge(view, response(1, 0, topic_id=uuid.UUID(int=8))).leader_epoch_of(T0) == 0
    assert merge(view, response(1, 7, topic_id=ZERO_UUID)).leader_epoch_of(T0) == NO_LEADER_EPOCH


def test_a_leader_that_is_not_registered_is_none() -> None:
    assert merge(ClusterMetadata(), response(-1, 1)).leader_of(T0) is None
    view = merge(ClusterMetadata(), response(3, 1))
    assert view.leader_of(T0) is None
    assert view.topics["t"].led_partitions == [0]


def test_a_topic_that_vanished_is_an_error_until_it_is_back() -> None:
    view = merge(merge(ClusterMetadata(), response(1, 0)), response(1, 0, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert "t" not in view.topics
    assert view.errors == {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert merge(view, response(1, 0)).errors == {}


def test_a_topic_that_never_had_a_leader_is_known_with_its_partitions() -> None:
    partition = MetadataResponsePartition(partition_index=0, leader_id=-1, leader_epoch=-1, replica_nodes=[1])
    topic = MetadataResponseTopic(
        name="t", topic_id=ID, error_code=ErrorCode.LEADER_NOT_AVAILABLE, partitions=[partition]
    )
    view = merge(ClusterMetadata(), MetadataResponse(brokers=BROKERS, controller_id=2, cluster_id="c", topics=[topic]))
    assert view.errors == {"t": ErrorCode.LEADER_NOT_AVAILABLE}
    assert view.topics["t"].partitions[0].leader is None
    assert view.topics["t"].partitions[0].replicas == (1,)


def test_a_topic_without_leader_for_a_moment_stays_known() -> None:
    view = merge(merge(ClusterMetadata(), response(1, 0)), response(1, 0, error=ErrorCode.LEADER_NOT_AVAILABLE))
    assert view.leader_of(T0) == 1
