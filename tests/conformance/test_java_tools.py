"""The Java tools of Apache Kafka 4 at work on our broker, as their users start them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import wait_for
from tests.support.java_tools import TOOLS, create, run
from tests.support.kafka import run_kafka_class

GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
RECORDS = 1000


def events(printed: str, name: str) -> list[dict[str, Any]]:
    """The lines of JSON of a verifiable client that bear this name."""
    said = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [line for line in said if line["name"] == name]


@pytest.mark.long
def test_kafka_topics_creates_alters_and_deletes_topics(our_broker: str) -> None:
    topics = f"{TOOLS}.TopicCommand"
    create(our_broker, "java-topics", "--partitions", "2", "--config", "retention.ms=3600000")
    run(topics, our_broker, "--alter", "--topic", "java-topics", "--partitions", "3")
    described = run(topics, our_broker, "--describe", "--topic", "java-topics")
    assert re.search(r"PartitionCount: 3\tReplicationFactor: 1\tConfigs: .*retention.ms=3600000", described)
    assert described.count("Leader: 1\tReplicas: 1\tIsr: 1") == 3
    run(topics, our_broker, "--delete", "--topic", "java-topics")
    assert "java-topics" not in run(topics, our_broker, "--list").split()


@pytest.mark.long
def test_kafka_configs_describes_and_alters_settings(our_broker: str) -> None:
    create(our_broker, "java-configs")
    of_topic = ["--entity-type", "topics", "--entity-name", "java-configs"]
    run(CONFIGS, our_broker, "--alter", *of_topic, "--add-config", "max.message.bytes=2000000,retention.ms=5000")
    run(CONFIGS, our_broker, "--alter", *of_topic, "--delete-config", "retention.ms")
    described = run(CONFIGS, our_broker, "--describe", *of_topic)
    assert "DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000000, DEFAULT_CONFIG:message.max.bytes=1048588" in described
    assert "retention.ms" not in described
    of_broker = ["--entity-type", "brokers", "--entity-name", "1", "--all"]
    assert "num.partitions=1 sensitive=false" in run(CONFIGS, our_broker, "--describe", *of_broker)
    of_client = ["--entity-type", "clients", "--entity-name", "java-client"]
    run(CONFIGS, our_broker, "--alter", *of_client, "--add-config", "producer_byte_rate=1048576")
    told = "Quota configs for client-id 'java-client' are producer_byte_rate=1048576.0"
    wait_for("the quota", lambda: told in run(CONFIGS, our_broker, "--describe", *of_client))
    run(CONFIGS, our_broker, "--alter", *of_client, "--delete-config", "producer_byte_rate")
    wait_for("its end", lambda: "producer_byte_rate" not in run(CONFIGS, our_broker, "--describe", *of_client))


@pytest.fixture(scope="module")
def verified(our_broker: str) -> str:
    """A topic that the verifiable producer has filled and the verifiable consumer has read, in two goes."""
    topic = "java-verified"
    create(our_broker, topic, "--partitions", "2")
    sent = run(f"{TOOLS}.VerifiableProducer", our_broker, "--topic", topic, "--max-messages", str(RECORDS))
    assert [(line["sent"], line["acked"]) for line in events(sent, "tool_data")] == [(RECORDS, RECORDS)]
    acknowledged = {(line["partition"], line["offset"]) for line in events(sent, "producer_send_success")}
    assert len(acknowledged) == RECORDS
    consumer = ["--topic", topic, "--group-id", "java-group", "--reset-policy", "earliest", "--verbose"]
    read: list[dict[str, Any]] = []
    for count in (RECORDS // 4, RECORDS - RECORDS // 4):
        told = run(f"{TOOLS}.VerifiableConsumer", our_broker, *consumer, "--max-messages", str(count))
        assert all(line["success"] for line in events(told, "offsets_committed"))
        read += events(told, "record_data")
    assert {(line["partition"], line["offset"]) for line in read} == acknowledged
    assert len(read) == RECORDS
    return topic


@pytest.mark.long
def test_kafka_consumer_groups_lists_describes_and_resets_groups(our_broker: str, verified: str) -> None:
    assert re.search(r"java-group +Empty", run(GROUPS, our_broker, "--list", "--state"))
    described = run(GROUPS, our_broker, "--describe", "--group", "java-group")
    lags = [line.split()[5] for line in described.splitlines() if line.startswith("java-group")]
    assert set(lags) == {"0"}
    deletion = ["--group", "java-group", "--topic", f"{verified}:1", "--delete-offsets"]
    assert re.search(rf"{verified} +1 +Successful", run(GROUPS, our_broker, *deletion))
    reset = ["--group", "java-group", "--topic", verified, "--reset-offsets", "--to-earliest", "--execute"]
    assert re.findall(rf"java-group +{verified} +\d +(\d+)", run(GROUPS, our_broker, *reset)) == ["0", "0"]
    deleted = run(GROUPS, our_broker, "--delete", "--group", "java-group")
    assert "Deletion of requested consumer groups ('java-group') was successful." in deleted


def test_offsets_and_records(our_broker: str, verified: str, tmp_path: Path) -> None:
    offsets = f"{TOOLS}.GetOffsetShell"
    ends = dict(re.findall(rf"{verified}:(\d):(\d+)", run(offsets, our_broker, "--topic", verified)))
    assert sum(map(int, ends.values())) == RECORDS
    deletion = tmp_path / "delete.json"
    partition = max(ends, key=lambda index: int(ends[index]))
    wanted = {"version": 1, "partitions": [{"topic": verified, "partition": int(partition), "offset": 3}]}
    deletion.write_text(json.dumps(wanted))
    deleted = run(f"{TOOLS}.DeleteRecordsCommand", our_broker, "--offset-json-file", str(deletion))
    assert f"partition: {verified}-{partition}\tlow_watermark: 3" in deleted
    starts = run(offsets, our_broker, "--topic", verified, "--time", "earliest")
    assert f"{verified}:{partition}:3" in starts


@pytest.mark.long
def test_the_cluster_described(our_broker: str, verified: str) -> None:
    printed = run(f"{TOOLS}.LogDirsCommand", our_broker, "--describe", "--topic-list", verified)
    (directories,) = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    (directory,) = directories["brokers"][0]["logDirs"]
    assert {part["partition"] for part in directory["partitions"]} == {f"{verified}-0", f"{verified}-1"}
    assert "Produce(0): 0 to 13 [usable: 13]" in run(f"{TOOLS}.BrokerApiVersionsCommand", our_broker)
    place = ["--topic", verified, "--partition", "0"]
    producers = run_kafka_class(
        f"{TOOLS}.TransactionsCommand",
        *("--bootstrap-server", our_broker, "describe-producers", *place),
    )
    assert "ProducerId" in producers
    elected = run(f"{TOOLS}.LeaderElectionCommand", our_broker, "--election-type", "preferred", *place)
    assert "Valid replica already elected for partitions" in elected
    assert "Cluster ID: " in run_kafka_class(f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", our_broker)


@pytest.mark.long
def test_reassignment_of_one_replica(our_broker: str, tmp_path: Path) -> None:
    """The cluster of `test_java_tools_cluster.py` moves partitions; here it is seen what is asked for."""
    create(our_broker, "java-stays", "--replica-assignment", "1")
    plan = tmp_path / "plan.json"
    plan.write_text('{"version":1,"partitions":[{"topic":"java-stays","partition":0,"replicas":[1]}]}')
    tool, of_plan = f"{TOOLS}.reassign.ReassignPartitionsCommand", ["--reassignment-json-file", str(plan)]
    assert "Successfully started partition reassignment" in run(tool, our_broker, "--execute", *of_plan)
    assert "No partition reassignments found." in run(tool, our_broker, "--list")


@pytest.mark.long
def test_performance_tools(our_broker: str) -> None:
    create(our_broker, "java-performance")
    arguments = ["--topic", "java-performance", "--num-records", "20000", "--record-size", "100", "--throughput", "-1"]
    produced = run_kafka_class(
        f"{TOOLS}.ProducerPerformance", *arguments, "--producer-props", f"bootstrap.servers={our_broker}"
    )
    assert "20000 records sent" in produced
    group = ["--topic", "java-performance", "--group", "java-performance", "--timeout", "120000"]

    def read(count: int) -> int:
        consumed = run(f"{TOOLS}.ConsumerPerformance", our_broker, *group, "--messages", str(count))
        return int(consumed.splitlines()[-1].split(", ")[4])

    first = read(10_000)
    assert read(20_000 - first) == 20_000 - first, "it goes on from what was committed"
