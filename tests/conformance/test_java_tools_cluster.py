"""The Java tools of Apache Kafka 4 that show and change a cluster of several brokers, on three of ours."""

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import wait_for
from tests.support.java_tools import TOOLS, create, run

TOPICS = f"{TOOLS}.TopicCommand"
REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"


def wait_for_description(cluster: LocalCluster, topic: str, is_so: Callable[[str], object]) -> None:
    """Wait until a broker describes a topic so: each learns of a change in its own time, and the tool asks any."""

    def is_described() -> bool:
        try:
            return bool(is_so(run(TOPICS, cluster.bootstrap, "--describe", "--topic", topic)))
        except subprocess.CalledProcessError:  # this broker does not know the topic yet
            return False

    wait_for(f"description of {topic}", is_described)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers, of which one that dies stays dead."""
    with LocalCluster(brokers=3, restart_after_s=0) as running:
        yield running


@pytest.mark.long
def test_replicas_are_described(cluster: LocalCluster) -> None:
    create(cluster.bootstrap, "java-three", "--partitions", "3", "--replication-factor", "3")

    def is_described(text: str) -> bool:
        return (
            "PartitionCount: 3\tReplicationFactor: 3" in text
            and sorted(re.findall(r"Leader: (\d)", text)) == ["1", "2", "3"]
            and all(sorted(found.split(",")) == ["1", "2", "3"] for found in re.findall(r"Replicas: (\S+)", text))
        )

    wait_for_description(cluster, "java-three", is_described)


@pytest.mark.long
def test_partitions_are_moved_and_led_by_others(cluster: LocalCluster, tmp_path: Path) -> None:
    create(cluster.bootstrap, "java-moved", "--replica-assignment", "1:2")
    wait_for_description(cluster, "java-moved", lambda text: "Isr: 1,2" in text)
    plan = tmp_path / "plan.json"
    plan.write_text('{"version":1,"partitions":[{"topic":"java-moved","partition":0,"replicas":[3,1]}]}')
    of_plan = ["--reassignment-json-file", str(plan)]
    begun = run(REASSIGN, cluster.bootstrap, "--execute", "--throttle", "100000000", *of_plan)
    assert "Successfully started partition reassignment for java-moved-0" in begun
    assert "The inter-broker throttle limit was set to 100000000 B/s" in begun

    def is_over() -> bool:
        return "java-moved-0 is completed" in run(REASSIGN, cluster.bootstrap, "--verify", *of_plan)

    wait_for("the end of the reassignment", is_over)
    elected = run(
        f"{TOOLS}.LeaderElectionCommand",
        cluster.bootstrap,
        *("--election-type", "preferred", "--topic", "java-moved", "--partition", "0"),
    )
    by_hand = "Successfully completed leader election (PREFERRED) for partitions java-moved-0"
    assert by_hand in elected or "Valid replica already elected for partitions java-moved-0" in elected  # by itself
    wait_for_description(
        cluster,
        "java-moved",
        lambda text: "Leader: 3\tReplicas: 3,1" in text and "throttled" not in text,  # lifted by --verify
    )


@pytest.mark.long
def test_a_plan_of_kafkas_tool(cluster: LocalCluster, tmp_path: Path) -> None:
    create(cluster.bootstrap, "java-planned", "--replica-assignment", "1:2")
    topics = tmp_path / "topics.json"
    topics.write_text('{"version":1,"topics":[{"topic":"java-planned"}]}')
    wanted = ["--topics-to-move-json-file", str(topics), "--broker-list", "2,3"]
    printed = run(REASSIGN, cluster.bootstrap, "--generate", *wanted)
    proposed = json.loads(printed.rpartition("configuration\n")[2])
    assert sorted(proposed["partitions"][0]["replicas"]) == [2, 3]
    assert "No partition reassignments found." in run(REASSIGN, cluster.bootstrap, "--list")


@pytest.mark.long
def test_kafka_topics_lists_troubled_partitions_while_a_broker_is_down(cluster: LocalCluster) -> None:
    create(cluster.bootstrap, "java-strict", "--replica-assignment", "1:2:3", "--config", "min.insync.replicas=3")
    create(cluster.bootstrap, "java-pair", "--replica-assignment", "1:3")
    create(cluster.bootstrap, "java-single", "--replica-assignment", "3")
    for topic, leader in (("java-strict", 1), ("java-pair", 1), ("java-single", 3)):
        wait_for_description(cluster, topic, partial(re.search, f"Leader: {leader}"))
    cluster.kill("broker-3", signal.SIGTERM)

    def listed(option: str) -> set[str]:
        return set(re.findall(r"Topic: (\S+)", run(TOPICS, cluster.bootstrap, "--describe", option)))

    def lists(option: str, topics: set[str]) -> bool:
        return listed(option) >= topics

    wait_for("an offline partition", lambda: listed("--unavailable-partitions") == {"java-single"})
    for option, topics in (
        ("--under-replicated-partitions", {"java-pair", "java-strict"}),
        ("--under-min-isr-partitions", {"java-strict"}),
        ("--at-min-isr-partitions", {"java-pair"}),
    ):
        wait_for(option, partial(lists, option, topics))
