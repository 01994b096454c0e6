"""Consumer groups of foreign clients, each member a process: who comes, leaves or is killed, and who comes back.

All groups are tried at the same time, on our broker and then on Apache Kafka.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.clients import RunningClient, running_client, wait_for

PARTITIONS = 6
SESSION_MS = 15_000
LONG_SESSION_MS = 300_000
DEADLINE_S = 180
PROGRAMS = {"confluent-kafka": "confluent_group", "aiokafka": "aiokafka_group", "kafka-python": "kafka_python_group"}
CLIENTS = [
    ("confluent-kafka", "range"),
    ("confluent-kafka", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "cooperative-sticky"),
    ("aiokafka", "range"),
]
STATIC_CLIENTS = [("confluent-kafka", "range"), ("kafka-python", "range"), ("aiokafka", "range")]


class Watched:
    """A topic of its own and the group that reads it, as an admin client sees them."""

    def __init__(self, bootstrap: str, client: str, strategy: str, stack: ExitStack) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self.name = f"{client}-{strategy}-{uuid.uuid4().hex}"
        self.client, self.strategy, self.stack = client, strategy, stack
        self.total = 0
        self.admin.create_topics([NewTopic(self.name, PARTITIONS, 1)])[self.name].result(DEADLINE_S)

    def start(self, instance: str | None = None) -> tuple[RunningClient, ExitStack]:
        """A member, and what kills it."""
        asked = {
            "group": self.name,
            "topic": self.name,
            "instance": instance,
            "strategy": self.strategy,
            "session_ms": LONG_SESSION_MS if instance else SESSION_MS,
        }
        killer = self.stack.enter_context(ExitStack())
        program = PROGRAMS[self.client]
        return killer.enter_context(running_client(program, "member", self.bootstrap, asked)), killer

    def produce(self, first: int, count: int) -> set[str]:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        values = {str(number) for number in range(first, first + count)}
        for value in values:
            producer.produce(self.name, value, partition=int(value) % PARTITIONS)
        assert producer.flush(DEADLINE_S) == 0
        return values

    def described(self) -> Any:
        return self.admin.describe_consumer_groups([self.name])[self.name].result(DEADLINE_S)

    def parts(self) -> dict[str, list[int]]:
        """The partitions of each member (by instance id if it has one), empty while the group is not stable."""
        group = self.described()
        if group.state is not ConsumerGroupState.STABLE:
            return {}
        return {
            member.group_instance_id or member.member_id: sorted(
                position.partition for position in member.assignment.topic_partitions
            )
            for member in group.members
        }

    def wait_for_sizes(self, *sizes: int) -> dict[str, list[int]]:
        """Until the partitions are shared so; each belongs to one member."""
        found: dict[str, list[int]] = {}

        def is_shared() -> bool:
            found.clear()
            found.update(self.parts())
            return sorted(map(len, found.values())) == sorted(sizes)

        wait_for(f"{sizes} partitions in {self.name}", is_shared)
        assert sorted(number for part in found.values() for number in part) == list(range(PARTITIONS))
        return dict(found)

    def wait_until_read(self) -> None:
        """Until the group has committed all there is."""

        def lag() -> int:
            asked = [ConsumerGroupTopicPartitions(self.name)]
            committed = self.admin.list_consumer_group_offsets(asked)[self.name].result(DEADLINE_S).topic_partitions
            return sum(position.offset for position in committed)

        total = self.total
        wait_for(f"{total} records read of {self.name}", lambda: lag() == total)


def come_leave_and_die(group: Watched) -> None:
    (one, _), (_, two_dies), (three, _) = group.start(), group.start(), group.start()
    group.wait_for_sizes(2, 2, 2)
    written = group.produce(0, 60)
    group.total = 60
    group.wait_until_read()
    read = three.stop()["values"]
    group.wait_for_sizes(3, 3)
    written |= group.produce(60, 60)
    group.total = 120
    group.wait_until_read()
    two_dies.close()
    group.wait_for_sizes(6)
    written |= group.produce(120, 60)
    group.total = 180
    group.wait_until_read()
    read += one.stop()["values"]
    assert len(read) == len(set(read))
    assert set(read) <= written
    assert {str(number) for number in range(120, 180)} <= set(read)
    assert group.described().state is ConsumerGroupState.EMPTY
    group.admin.delete_consumer_groups([group.name])[group.name].result(DEADLINE_S)


def restart_in_place(group: Watched) -> None:
    """Static members keep their part over a restart, and nobody else notices."""
    (_, a_dies), (b, _) = group.start("a"), group.start("b")
    before = group.wait_for_sizes(3, 3)
    group.produce(0, 60)
    group.total = 60
    group.wait_until_read()  # both have taken what they were given
    ids = {member.group_instance_id: member.member_id for member in group.described().members}
    a_dies.close()
    killed_at = time.time()
    (again, _) = group.start("a")

    def is_back() -> bool:
        now = {member.group_instance_id: member.member_id for member in group.described().members}
        return bool(now["a"] != ids["a"] and now["b"] == ids["b"])

    wait_for("the return of a", is_back)
    assert group.wait_for_sizes(3, 3) == before
    group.produce(60, 60)
    group.total = 120
    group.wait_until_read()
    found = [again.stop(), b.stop()]
    assert [one["error"] for one in found] == [None, None]
    assert [[count for at, count in one["given"] if at > killed_at] for one in found] == [[3], []]
    read = {int(value) for one in found for value in one["values"]}
    assert set(range(60, 120)) <= read <= set(range(120))


SCENARIOS: dict[str, tuple[Callable[[Watched], None], str, str]] = {
    **{f"{client}, {strategy}": (come_leave_and_die, client, strategy) for client, strategy in CLIENTS},
    **{f"{client}, static": (restart_in_place, client, strategy) for client, strategy in STATIC_CLIENTS},
}


@pytest.fixture(scope="module", params=["our_broker", pytest.param("apache_kafka", marks=pytest.mark.long)])
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """All scenarios under way."""
    bootstrap = request.getfixturevalue(request.param)

    def play(scenario: Callable[[Watched], None], client: str, strategy: str) -> None:
        with ExitStack() as stack:
            scenario(Watched(bootstrap, client, strategy, stack))

    with ThreadPoolExecutor(len(SCENARIOS)) as threads:
        yield {name: threads.submit(play, *scenario) for name, scenario in SCENARIOS.items()}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_clients_of_every_kind_pass_the_group_scenarios(outcomes: dict[str, Any], scenario: str) -> None:
    outcomes[scenario].result(540)
