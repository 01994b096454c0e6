"""`pipeline group` beside groups of a foreign client, on our broker and on Apache Kafka: the same in the same words."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from pipeline.cli.main import app
from tests.support.clients import wait_for

DEADLINE_S = 180
FIRST_MS = 1_700_000_000_000


class Ended(NamedTuple):
    stdout: str
    stderr: str


def pipeline(*arguments: str, code: int = 0) -> Ended:
    """The command, in this process: starting one takes longer than most of them."""
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == code, (ended.output, ended.exception)
    return Ended(ended.stdout, ended.stderr)


@pytest.fixture(scope="module", params=["our_broker", "apache_kafka"])
def server(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(request.param)
    return address


@pytest.fixture(scope="module")
def topic(server: str) -> str:
    name = "group-commands"
    admin = AdminClient({"bootstrap.servers": server})
    admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "-1"})])[name].result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": server, "topic.metadata.refresh.interval.ms": 500})
    for partition in (0, 1):
        for number in range(10):
            producer.produce(name, f"{number}", partition=partition, timestamp=FIRST_MS + 1000 * number)
    assert producer.flush(DEADLINE_S) == 0
    return name


@contextmanager
def consumer(server: str, group: str, **settings: Any) -> Iterator[Consumer]:
    defaults = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 45_000}
    opened = Consumer({"bootstrap.servers": server, "group.id": group, **defaults, **settings})
    try:
        yield opened
    finally:
        opened.close()


def commit(server: str, group: str, topic: str, *offsets: int) -> None:
    with consumer(server, group) as standalone:
        positions = [Position(topic, partition, offset) for partition, offset in enumerate(offsets)]
        standalone.commit(offsets=positions, asynchronous=False)


def described(server: str, group: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pipeline("group", "describe", group, "-b", server, "--json").stdout)
    return found


def lags(server: str, group: str) -> list[tuple[int, int | None, int | None]]:
    return [(row["partition"], row["committed"], row["lag"]) for row in described(server, group)["partitions"]]


def test_a_group_at_work(server: str, topic: str) -> None:
    with consumer(server, "at-work", **{"client.id": "reader"}) as member:
        member.subscribe([topic])
        read: list[Any] = []

        def has_read_all() -> bool:
            read.extend(member.consume(20, timeout=0.2))
            return len(read) == 20

        wait_for("all records", has_read_all)
        member.commit(asynchronous=False)
        found = described(server, "at-work")
        assert (found["state"], found["protocol_type"], found["assignor"]) == ("Stable", "consumer", "range")
        assert [row["client_id"] for row in found["partitions"]] == ["reader", "reader"]
        assert lags(server, "at-work") == [(0, 10, 0), (1, 10, 0)]
        listed = json.loads(pipeline("group", "list", "-b", server, "--json").stdout)["groups"]
        assert [group["state"] for group in listed if group["group"] == "at-work"] == ["Stable"]
        busy = pipeline("group", "reset-offsets", "at-work", "--to-earliest", "--execute", "-b", server, code=1)
        assert busy.stderr == "pipeline: group at-work has members: stop its consumers first\n"
        busy = pipeline("group", "delete", "at-work", "-b", server, code=1)
        assert busy.stderr == "pipeline: group at-work has members: stop its consumers first\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [10, 10]),
        (["--to-offset", "7"], [7, 7]),
        (["--to-offset", "99"], [10, 10]),
        (["--shift-by", "-2"], [2, 4]),
        (["--to-datetime", "2023-11-14T22:13:23.500Z"], [4, 4]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value[0], str) else "",
)
def test_a_reset_group_goes_on_at_its_new_offsets(
    server: str, topic: str, target: list[str], expected: list[int]
) -> None:
    group = f"goes-on{'-'.join(target)}"
    commit(server, group, topic, 4, 6)
    reset = ["group", "reset-offsets", group, *target, "-b", server]
    shown = json.loads(pipeline(*reset, "--json").stdout)
    assert [(row["committed"], row["new"]) for row in shown["partitions"]] == list(zip([4, 6], expected, strict=True))
    assert [committed for _, committed, _ in lags(server, group)] == [4, 6]
    pipeline(*reset, "--execute")
    assert [committed for _, committed, _ in lags(server, group)] == expected


def test_a_deleted_group_is_gone(server: str, topic: str) -> None:
    commit(server, "goes", topic, 4, 6)
    assert described(server, "goes")["state"] == "Empty"
    assert pipeline("group", "delete", "goes", "-b", server).stdout == "Deleted group goes.\n"
    gone = "pipeline: group goes does not exist: `pipeline group list` lists groups\n"
    assert pipeline("group", "describe", "goes", "-b", server, code=1).stderr == gone
    assert pipeline("group", "delete", "goes", "-b", server, code=1).stderr == gone
