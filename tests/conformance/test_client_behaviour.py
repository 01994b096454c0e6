"""Foreign clients ask our broker and Apache Kafka 4 the same questions and get the same answers.

`apache_kafka_answers.json` holds what Apache Kafka answers, by client and question; both servers are held to it.
"""

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import read_with_kcat, run_client, run_kcat, wait_for, write_with_kcat

ANSWERS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("apache_kafka_answers.json").read_text())
PROGRAMS = {
    "confluent-kafka": "confluent_behaviour",
    "aiokafka": "aiokafka_behaviour",
    "kafka-python": "kafka_python_behaviour",
}
SERVERS = ["our_broker", "apache_kafka"]
DEADLINE_S = 180
DELIVERY = "topic.metadata.propagation.max.ms=500"


@pytest.fixture(scope="module", params=SERVERS)
def bootstrap(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(request.param)
    return address


@pytest.fixture(scope="module")
def answers(bootstrap: str) -> dict[str, dict[str, Any]]:
    """All clients ask at the same time."""
    with ThreadPoolExecutor(len(PROGRAMS)) as threads:
        found = {name: threads.submit(run_client, program, "ask", bootstrap, {}) for name, program in PROGRAMS.items()}
        return {name: future.result() for name, future in found.items()}


@pytest.mark.parametrize(
    ("client", "question"), [(client, question) for client in ANSWERS for question in ANSWERS[client]]
)
def test_answers_are_those_of_apache_kafka(answers: dict[str, dict[str, Any]], client: str, question: str) -> None:
    assert answers[client][question] == ANSWERS[client][question]


def test_clients_are_asked_the_questions_of_the_table(answers: dict[str, dict[str, Any]]) -> None:
    assert {client: list(found) for client, found in answers.items()} == {
        client: list(expected) for client, expected in ANSWERS.items()
    }


@pytest.fixture
def written_by_kcat(bootstrap: str) -> str:
    topic = f"kcat-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
    wait_for("topic", lambda: len(admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions) == 1)
    write_with_kcat(bootstrap, topic, "none", [(b"%d" % number, b"value %d" % number) for number in range(10)])
    return topic


def test_kcat_is_answered(bootstrap: str, written_by_kcat: str) -> None:
    topic = written_by_kcat

    def ask(*arguments: str) -> str:
        return run_kcat("-b", bootstrap, *arguments).stdout.decode().replace(topic, "TOPIC")

    assert 'topic "never-made" with 0 partitions: Broker: Unknown topic or partition' in ask("-L", "-t", "never-made")
    offsets = {time: ask("-Q", "-t", f"{topic}:0:{time}") for time in (-2, -1, 1, 10**14)}
    assert offsets == {time: f"TOPIC [0] offset {at}\n" for time, at in {-2: 0, -1: 10, 1: 0, 10**14: -1}.items()}
    assert [offset for offset, *_ in read_with_kcat(bootstrap, topic, "5")] == [5, 6, 7, 8, 9]
    assert [offset for offset, *_ in read_with_kcat(bootstrap, topic, "-3")] == [7, 8, 9]


def test_kcat_is_a_member_of_a_group(bootstrap: str, written_by_kcat: str) -> None:
    group = f"group-of-{written_by_kcat}"
    member = ("-b", bootstrap, "-G", group, "-q", "-e", "-X", "auto.offset.reset=earliest", "-f", "%o ")
    assert run_kcat(*member, written_by_kcat).stdout == b"0 1 2 3 4 5 6 7 8 9 "


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        (("-P", "-t", "never-made", "-X", DELIVERY), b"value", "Unknown topic or partition"),
        (("-P", "-t", "TOPIC", "-p", "7", "-X", DELIVERY), b"value", "Unknown partition"),
        (("-P", "-t", "TOPIC", "-X", "message.max.bytes=4000000"), b"x" * 2_000_000, "Message size too large"),
        (("-C", "-t", "TOPIC", "-o", "1000", "-e", "-X", "auto.offset.reset=error"), b"", "Offset out of range"),
    ],
    ids=["unknown topic", "unknown partition", "too large", "out of range"],
)
def test_kcat_is_refused(
    bootstrap: str, written_by_kcat: str, arguments: tuple[str, ...], given: bytes, message: str
) -> None:
    named = [argument.replace("TOPIC", written_by_kcat) for argument in arguments]
    assert message in run_kcat("-b", bootstrap, *named, given=given, fails=True).stderr.decode()


@pytest.mark.long
def test_topics_are_made_by_producing(tmp_path: Path) -> None:
    settings = {"num.partitions": 3}
    with LocalCluster(tmp_path / "cluster", settings=settings) as cluster:
        record: list[Any] = [None, "dmFsdWU=", [], 1_431_849_903_000]
        for name, program in (("a", "confluent_client"), ("b", "aiokafka_client"), ("c", "kafka_python_client")):
            topic = {"name": name, "codec": "none", "records": [record]}
            run_client(program, "write", cluster.bootstrap, {"topics": [topic]})
        run_kcat("-P", "-b", cluster.bootstrap, "-t", "d", "-p", "0", given=b"value")
        found = run_client("confluent_client", "read", cluster.bootstrap, {"counts": dict.fromkeys("abcd", 1)})
        assert [found[name][0][:3] for name in "abcd"] == [[0, None, "dmFsdWU="]] * 4
        made = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=DEADLINE_S).topics
        made.pop("__consumer_offsets", None)
        assert {name: len(topic.partitions) for name, topic in made.items()} == dict.fromkeys("abcd", 3)
