import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.coordination.znodes import (
    BrokerRegistration,
    ClusterId,
    Listener,
    PartitionState,
    ProducerIdBlock,
    TopicAssignment,
    broker_config_path,
    decode_config,
    encode_config,
    encode_uuid,
    topic_config_path,
)
from pipeline.errors import CoordinationError
from pipeline.model import BrokerEndpoint, BrokerId, HostPort, LeaderEpoch
from pipeline.records.producer_marks import MARK

ONE = BrokerId(1)

# As written by Kafka 0.8/0.10.0 (version 1 to 3), 1.0 to 2.6 (4) and 2.7/2.8 (5).
BROKERS = {
    1: b'{"jmx_port":-1,"timestamp":"1460407263120","host":"10.0.0.7","version":1,"port":9092}',
    2: b'{"jmx_port":9999,"timestamp":"2233345666","host":"localhost","version":2,"port":9092,'
    b'"endpoints":["PLAINTEXT://localhost:9092","SSL://localhost:9093"]}',
    3: b'{"jmx_port":-1,"timestamp":"1460407263120","endpoints":["PLAINTEXT://host1:9092"],'
    b'"host":"host1","version":3,"port":9092,"rack":"dc1"}',
    4: b'{"listener_security_protocol_map":{"CLIENT":"SSL","REPLICATION":"PLAINTEXT"},'
    b'"endpoints":["CLIENT://host1:9092","REPLICATION://[::1]:9093"],"jmx_port":9999,"host":null,'
    b'"timestamp":"2233345666","port":-1,"version":4,"rack":"dc1"}',
    5: b'{"features":{"feature1":{"min_version":1,"first_active_version":2,"max_version":5}},'
    b'"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://broker-1:9092"],'
    b'"jmx_port":-1,"port":9092,"host":"broker-1","version":5,"timestamp":"1619083200000"}',
}
LISTENERS = {
    1: (Listener(address=HostPort("10.0.0.7", 9092)),),
    2: (
        Listener(address=HostPort("localhost", 9092)),
        Listener(name="SSL", security_protocol="SSL", address=HostPort("localhost", 9093)),
    ),
    3: (Listener(address=HostPort("host1", 9092)),),
    4: (
        Listener(name="CLIENT", security_protocol="SSL", address=HostPort("host1", 9092)),
        Listener(name="REPLICATION", address=HostPort("::1", 9093)),
    ),
    5: (Listener(address=HostPort("broker-1", 9092)),),
}


@pytest.mark.parametrize("version", sorted(BROKERS))
def test_brokers_of_every_kafka_are_read_and_written_again(version: int) -> None:
    broker = BrokerRegistration.decode(ONE, BROKERS[version])
    assert broker.listeners == LISTENERS[version]
    assert broker.rack == ("dc1" if version in (3, 4) else None)
    assert BrokerRegistration.decode(ONE, broker.encode()) == broker


def test_broker_is_written_as_kafka_28_does() -> None:
    broker = BrokerRegistration.decode(ONE, BROKERS[5])
    assert json.loads(broker.encode()) == {**json.loads(BROKERS[5]), "features": {}}
    assert broker.path == "/brokers/ids/1"
    assert broker.endpoint() == BrokerEndpoint(id=ONE, address=HostPort("broker-1", 9092))
    assert broker.endpoint("INTERNAL") is None


def test_a_broker_tells_of_its_log_dirs() -> None:
    directories = (uuid.UUID(int=1), uuid.UUID(int=2))
    broker = replace(BrokerRegistration.decode(ONE, BROKERS[5]), directories=directories)
    assert json.loads(broker.encode())["directories"] == ["AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"]
    assert BrokerRegistration.decode(ONE, broker.encode()) == broker


def test_topics_of_every_kafka() -> None:
    first = TopicAssignment.decode("t", b'{"version":1,"partitions":{"1":[1,0],"0":[0,1]}}')
    assert (first.topic_id, first.partitions) == (None, {0: (0, 1), 1: (1, 0)})
    assert json.loads(first.encode())["version"] == 2

    newest = (
        b'{"removing_replicas":{"0":[2]},"partitions":{"0":[1,2,3]},'
        b'"topic_id":"jKHlZuPBTMa4TkRVpJd15Q","adding_replicas":{"0":[3]},"version":3}'
    )
    topic = TopicAssignment.decode("t", newest)
    assert topic.adding_replicas == {0: (3,)}
    assert topic.topic_id is not None
    assert encode_uuid(topic.topic_id) == "jKHlZuPBTMa4TkRVpJd15Q"
    assert json.loads(topic.encode()) == json.loads(newest)
    assert topic.path == "/brokers/topics/t"


def test_partition_state_of_kafka() -> None:
    data = b'{"controller_epoch":18,"leader":2,"version":1,"leader_epoch":25,"isr":[2,3]}'
    state = PartitionState.decode("t", 4, data)
    assert (state.leader, state.leader_epoch, state.isr, state.controller_epoch) == (2, 25, (2, 3), 18)
    assert json.loads(state.encode()) == json.loads(data)
    assert state.path == "/brokers/topics/t/partitions/4/state"


def test_small_znodes_of_kafka() -> None:
    config = b'{"version":1,"config":{"retention.ms":"100000","cleanup.policy":"compact"}}'
    assert json.loads(encode_config(decode_config(topic_config_path("t"), config))) == json.loads(config)
    cluster = b'{"version":"1","id":"sP5XHcTzTkGyRwSPHhsXbw"}'
    assert json.loads(ClusterId.decode(cluster).encode()) == json.loads(cluster)
    block = b'{"version":1,"broker":2,"block_start":"3000","block_end":"3999"}'
    assert ProducerIdBlock.decode(block) == ProducerIdBlock(broker=BrokerId(2), first=3000, last=3999)
    assert json.loads(ProducerIdBlock.decode(block).encode()) == json.loads(block)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"version":1}',
        b'{"version":2,"endpoints":["PLAINTEXT:host"]}',
        b'{"version":2,"endpoints":["PLAINTEXT://host:port"]}',
        b'{"version":2,"endpoints":["PLAINTEXT://host:\xc2\xb2"]}',
        b'{"version":2,"endpoints":7}',
    ],
)
def test_registrations_that_describe_no_broker_are_refused(data: bytes) -> None:
    with pytest.raises(CoordinationError) as caught:
        BrokerRegistration.decode(ONE, data)
    assert caught.value.path == "/brokers/ids/1"


def test_a_block_of_producer_ids_with_marks_is_refused() -> None:
    data = b'{"version":1,"broker":2,"block_start":"3000","block_end":"%d"}'
    with pytest.raises(CoordinationError):
        ProducerIdBlock.decode(data % MARK)
    assert ProducerIdBlock.decode(data % (MARK - 1_000_000)).last == MARK - 1_000_000


@pytest.mark.parametrize("topic_id", ["", "AAAA", "?" * 22, "ä" * 22])
def test_invalid_topic_ids_are_refused(topic_id: str) -> None:
    data = json.dumps({"version": 3, "partitions": {}, "topic_id": topic_id}).encode()
    with pytest.raises(CoordinationError):
        TopicAssignment.decode("t", data)


DECODERS: list[Callable[[bytes], object]] = [
    lambda data: BrokerRegistration.decode(ONE, data),
    lambda data: TopicAssignment.decode("t", data),
    lambda data: PartitionState.decode("t", 0, data),
    lambda data: decode_config(topic_config_path("t"), data),
    lambda data: decode_config(broker_config_path("1"), data),
    ClusterId.decode,
    ProducerIdBlock.decode,
]


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=60))
def test_random_bytes_raise_nothing_else(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(CoordinationError):
        decode(data)


brokers = st.integers(0, 2**31 - 1).map(BrokerId)
replicas = st.dictionaries(
    st.integers(0, 5000), st.lists(brokers, min_size=1, max_size=3, unique=True).map(tuple), max_size=5
)


@given(st.none() | st.uuids(), replicas, replicas)
def test_any_topic_survives(topic_id: uuid.UUID | None, partitions: dict[Any, Any], adding: dict[Any, Any]) -> None:
    topic = TopicAssignment(topic="t", topic_id=topic_id, partitions=partitions, adding_replicas=adding)
    assert TopicAssignment.decode("t", topic.encode()) == topic


@given(st.integers(0, 4000), st.integers(-1, 9), st.integers(0, 2**31 - 1), st.lists(brokers, max_size=4).map(tuple))
def test_any_partition_state_survives(partition: int, leader: int, epoch: int, isr: tuple[Any, ...]) -> None:
    state = PartitionState(
        topic="t",
        partition=partition,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=isr,
        controller_epoch=3,
    )
    assert PartitionState.decode("t", partition, state.encode()) == state


def test_a_znode_that_is_only_a_parent_has_no_settings() -> None:
    """A quota of a client id of a user creates the user's znode without data, and further quotas of the user failed."""
    assert decode_config("/config/users/alice", b"") == {}
