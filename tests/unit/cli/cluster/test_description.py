from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipeline.broker.replicas.strays import ASSIGNED_ELSEWHERE, UNKNOWN_TOPIC
from pipeline.cli.cluster.description import (
    BrokerReport,
    broker_rows,
    find_troubles,
    is_in_trouble,
    print_cluster,
)
from pipeline.client.admin.brokers import LogDir
from pipeline.client.admin.elections import Reassignment
from pipeline.client.cluster.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from pipeline.model import BrokerEndpoint, BrokerId, HostPort, LeaderEpoch, TopicPartition

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


def view(*partitions: tuple[BrokerId | None, tuple[BrokerId, ...], tuple[BrokerId, ...]]) -> ClusterMetadata:
    """A topic `t` on brokers 1 and 2, which are alive, and 3, which is not: leader, replicas, ISR."""
    brokers = {broker: BrokerEndpoint(id=broker, address=HostPort("h", broker), rack=None) for broker in (ONE, TWO)}
    topic = TopicMetadata(
        name="t",
        partitions={
            index: PartitionMetadata(leader=leader, leader_epoch=LeaderEpoch(0), replicas=replicas, isr=isr)
            for index, (leader, replicas, isr) in enumerate(partitions)
        },
    )
    return ClusterMetadata(brokers=brokers, topics={"t": topic})


def test_a_healthy_cluster_has_no_troubles() -> None:
    found = find_troubles(view((ONE, (ONE, TWO), (TWO, ONE))), {"t": 2}, {})
    assert (found.under_replicated, found.below_min_isr, found.offline) == ([], [], [])


def test_partitions_that_lack_replicas() -> None:
    found = find_troubles(view((ONE, (ONE, THREE), (ONE,)), (TWO, (TWO,), (TWO,))), {"t": 2}, {})
    assert [(item["partition"], item["dead"]) for item in found.under_replicated] == [(0, [THREE])]
    shown = [(item["partition"], item["min_isr"]) for item in found.below_min_isr]
    assert shown == [(0, 2)], "one replica cannot be asked for two"


def test_a_dead_broker_that_is_still_in_the_isr_is_missed() -> None:
    found = find_troubles(view((ONE, (ONE, THREE), (ONE, THREE))), {"t": 2}, {})
    assert [(item["partition"], item["dead"]) for item in found.under_replicated] == [(0, [THREE])]
    assert [item["partition"] for item in found.below_min_isr] == [0]


def test_replicas_on_their_way_are_not_missed() -> None:
    moving = {TopicPartition("t", 0): Reassignment(replicas=(ONE, TWO), adding=(TWO,), removing=())}
    assert find_troubles(view((ONE, (ONE, TWO), (ONE,))), {}, moving).under_replicated == []


def test_offline_partitions_are_listed_with_what_helps() -> None:
    found = find_troubles(
        view(
            (None, (ONE, THREE), (THREE,)),
            (None, (ONE, TWO), ()),
            (None, (THREE,), ()),
            (None, (ONE,), (ONE,)),
        ),
        {"t": 1},
        {},
    )
    assert found.under_replicated == found.below_min_isr == []
    told = [f"{item['reason']}; {item['advice']}" for item in found.offline]
    assert "dead brokers: 3; start broker 3; if it is lost for good" in told[0]
    assert "pipeline cluster elect --unclean --topic t --partition 0" in told[0]
    assert "lost the end of its log" in told[1]
    assert told[2] == "all its replicas are on dead brokers; start broker 3"
    assert "broker 1 is in sync and alive, but does not lead" in told[3]
    assert "Repair it and restart" in told[3]


def test_a_leader_that_lost_the_partition_to_a_disk_is_none() -> None:
    led = PartitionMetadata(leader=ONE, replicas=(ONE,), isr=(ONE,), offline_replicas=(ONE,))
    found = find_troubles(ClusterMetadata(topics={"t": TopicMetadata(name="t", partitions={0: led})}), {}, {})
    assert found.under_replicated == found.below_min_isr == []
    (told,) = found.offline
    assert told["reason"] == "broker 1 leads the partition, but cannot open its log, or the disk failed"
    assert told["advice"] == "`/healthz` and the log of broker 1 name the file and what to do"


def test_partitions_that_never_had_a_leader_are_offline() -> None:
    never = {0: PartitionMetadata(leader=None, replicas=(ONE,)), 1: PartitionMetadata(leader=None, replicas=(THREE,))}
    seen = replace(view(), topics={"t": TopicMetadata(name="t", partitions=never)})
    reasons = [item["reason"] for item in find_troubles(seen, {"t": 1}, {}).offline]
    assert "never had a leader" in reasons[0]
    assert reasons[1] == "all its replicas are on dead brokers"


def test_brokers_are_listed_with_their_replicas() -> None:
    seven = LogDir(path="/d", error=None, partitions={TopicPartition("t", 0): 7})
    told = broker_rows(
        view((ONE, (ONE, THREE), (ONE,)), (ONE, (ONE, TWO), (ONE,))),
        {ONE: BrokerReport(log_dirs=[seven]), TWO: BrokerReport()},
    )
    assert [(item["id"], item["alive"], item["leaders"], item["replicas"], item["bytes"]) for item in told] == [
        (1, True, 2, 2, 7),
        (2, True, 0, 1, None),
        (3, False, 0, 1, None),
    ]


def test_a_description_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    seen = view((ONE, (ONE, THREE), (ONE,)), (None, (THREE,), (THREE,)))
    found = find_troubles(seen, {"t": 1}, {})
    description = {
        "cluster_id": "c",
        "controller": 1,
        "brokers": broker_rows(seen, {}),
        "topics": 1,
        "partitions": 2,
        "moving": 0,
        "under_replicated": found.under_replicated,
        "below_min_isr": found.below_min_isr,
        "offline": found.offline,
        "strays": [
            {"broker": 1, "topic": "old", "partition": 3, "topic_id": "I" * 22, "path": "/d/old-3", "reason": "lost"}
        ],
    }
    print_cluster(description)
    shown = capsys.readouterr().out
    assert "Cluster c, controller 1: 1 topics, 2 partitions, 0 of them being moved" in shown
    assert "not alive" in shown
    assert "Under-replicated: 1\n" in shown
    assert "Below min.insync.replicas: none" in shown
    assert "t-1: the in-sync replicas are on dead brokers: 3; start broker 3" in shown
    assert "Strays: 1\n" in shown
    assert "old: lost" in shown
    assert is_in_trouble(description)


def described(
    answers: dict[BrokerId, BrokerReport], controller: int | None = 1, strays: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    seen = view((ONE, (ONE, TWO), (ONE, TWO)))
    return {
        "cluster_id": "c",
        "controller": controller,
        "brokers": broker_rows(seen, answers),
        "topics": 1,
        "partitions": 1,
        "moving": 0,
        "under_replicated": [],
        "below_min_isr": [],
        "offline": [],
        "strays": strays,
    }


def test_a_cluster_that_cannot_be_vouched_for_is_in_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_in_trouble(described({ONE: BrokerReport(), TWO: BrokerReport()}))
    assert is_in_trouble(described({ONE: BrokerReport(), TWO: BrokerReport()}, controller=None))
    for answer, words in (
        (BrokerReport(is_there=False), "Broker 2 is registered and does not answer"),
        (BrokerReport(zookeeper_silence_s=25.4), "no ZooKeeper for 25 s"),
        (BrokerReport(problem="ZooKeeper has no /cluster/id"), "ZooKeeper has no /cluster/id. Restart no broker"),
        (BrokerReport(lost_znodes=["/config/topics/t"]), "unreadable: /config/topics/t"),
    ):
        found = described({ONE: BrokerReport(), TWO: answer})
        assert is_in_trouble(found)
        print_cluster(found)
        assert words in capsys.readouterr().out


def test_a_topic_that_zookeeper_lost_is_trouble_and_other_strays_are_not() -> None:
    stray = {"broker": 1, "topic": "old", "partition": 3, "topic_id": "I" * 22, "path": "/d/old-3"}
    answers = {ONE: BrokerReport(), TWO: BrokerReport()}
    assert is_in_trouble(described(answers, strays=[{**stray, "reason": UNKNOWN_TOPIC}]))
    assert not is_in_trouble(described(answers, strays=[{**stray, "reason": ASSIGNED_ELSEWHERE}]))
