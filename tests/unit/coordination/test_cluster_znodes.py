import json

import pytest

from pipeline.coordination.cluster_znodes import (
    ControllerEpoch,
    ControllerNode,
    decode_state_change,
    encode_state_change,
)
from pipeline.coordination.znodes import BrokerRegistration, Listener
from pipeline.errors import CoordinationError
from pipeline.model import BrokerId, HostPort, TopicPartition


def test_the_controller_as_kafka_writes_it() -> None:
    kafkas = b'{"version":2,"brokerid":1001,"timestamp":"1619083200000","kraftControllerEpoch":-1}'
    node = ControllerNode.decode(kafkas)
    assert node == ControllerNode(broker=BrokerId(1001), timestamp_ms=1_619_083_200_000)
    assert node.encode() == b'{"version":1,"brokerid":1001,"timestamp":"1619083200000"}'
    assert ControllerNode.decode(node.encode()) == node


def test_the_epoch_is_a_number_as_text() -> None:
    assert ControllerEpoch.decode(b"27") == ControllerEpoch(epoch=27)
    assert ControllerEpoch(epoch=28).encode() == b"28"


def test_changes_as_kafka_writes_them() -> None:
    kafkas = b'{"version":1,"partitions":[{"topic":"clicks","partition":0},{"topic":"views","partition":7}]}'
    changed = [TopicPartition("clicks", 0), TopicPartition("views", 7)]
    assert decode_state_change("/x", kafkas) == changed
    assert encode_state_change(changed) == kafkas


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"version":1}', b'{"version":1,"partitions":[3]}'])
def test_garbage_is_named_with_its_path(garbage: bytes) -> None:
    with pytest.raises(CoordinationError, match="/isr_change_notification/isr_change_3"):
        decode_state_change("/isr_change_notification/isr_change_3", garbage)
    with pytest.raises(CoordinationError, match="/controller"):
        ControllerNode.decode(garbage)
    with pytest.raises(CoordinationError, match="/controller_epoch"):
        ControllerEpoch.decode(b"x" + garbage)


def test_a_broker_that_wants_to_stop_says_so_and_others_do_not_mention_it() -> None:
    listeners = (Listener(address=HostPort("a", 9092)),)
    staying = BrokerRegistration(id=BrokerId(1), listeners=listeners, timestamp_ms=5)
    leaving = BrokerRegistration(id=BrokerId(1), listeners=listeners, timestamp_ms=5, is_shutting_down=True)
    assert "shutting_down" not in json.loads(staying.encode())
    assert not BrokerRegistration.decode(BrokerId(1), staying.encode()).is_shutting_down
    assert BrokerRegistration.decode(BrokerId(1), leaving.encode()) == leaving
