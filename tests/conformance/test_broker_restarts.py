"""The only broker is killed under foreign clients: nothing acknowledged is lost, doubled or moved; readers go on.

kcat ends when it has no broker left, so it runs in a loop, as in a script of the shell: what failed is written again,
readers go on where they were.
"""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from threading import Event, Thread
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import POLL_S, RunningClient, read_with_kcat, running_client, try_kcat, wait_for

pytestmark = pytest.mark.long

KILLS = 3
RECORDS_BETWEEN_KILLS = 200
PRODUCERS = {
    "confluent-kafka": "confluent_client",
    "aiokafka": "aiokafka_client",
    "kafka-python": "kafka_python_client",
}
MEMBERS = {"confluent-kafka": "confluent_group", "aiokafka": "aiokafka_group", "kafka-python": "kafka_python_group"}
CLIENTS = [*PRODUCERS, "kcat"]
KCAT_LINES = 50
SESSION_MS = 45_000
DEADLINE_S = 180
QUIET = {"log_level": 0}
GIVEN_UP = {
    getattr(KafkaError, name)
    for name in ("_UNKNOWN_PARTITION", "_TRANSPORT", "_DESTROY_BROKER", "_ALL_BROKERS_DOWN", "_TIMED_OUT")
}
"""What librdkafka says by itself, without an answer of a broker. When the only broker is away it begins again from its
bootstrap addresses and forgets the broker with the leaderships it had; until there is new metadata it calls a partition
unknown at once, whatever the timeout of the question. Programs have to ask again."""

Answer = TypeVar("Answer")


def asked_again(ask: Callable[[], Answer]) -> Answer:
    """The answer, as soon as the client does not give up by itself."""
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in GIVEN_UP or time.monotonic() > end:
                raise
            time.sleep(POLL_S)


class Kcat:
    """Numbered lines written and read until told to stop."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.place = ("-b", bootstrap, "-t", topic, "-p", "0")
        self.stopped = Event()
        self.sent = 0
        self.retried: set[int] = set()
        self.offsets: list[int] = []
        self.threads = [Thread(target=self.write), Thread(target=self.read)]

    def __enter__(self) -> "Kcat":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join()

    def write(self) -> None:
        while not self.stopped.is_set():
            numbers = range(self.sent, self.sent + KCAT_LINES)
            lines = b"".join(b"%d\n" % number for number in numbers)
            while try_kcat("-P", *self.place, given=lines).returncode:
                self.retried.update(numbers)
            self.sent += KCAT_LINES

    def read(self) -> None:
        ended = False
        while not ended:
            is_last = not self.threads[0].is_alive()
            done = try_kcat("-C", *self.place, "-o", str(len(self.offsets)), "-e", "-q", "-f", "%o\\n")
            self.offsets += map(int, done.stdout.split())
            ended = is_last and done.returncode == 0


class Traffic:
    """What the producers were told, what the log holds, what readers and the only members of groups saw meanwhile."""

    def __init__(self, bootstrap: str) -> None:
        self.topics = {name: f"{name}-{uuid.uuid4().hex}" for name in CLIENTS}
        self.admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        self.consumers = {
            name: Consumer({"bootstrap.servers": bootstrap, "group.id": f"group-{name}", **QUIET}) for name in CLIENTS
        }
        self.sent: dict[str, Any] = {}
        self.log: dict[str, list[tuple[Any, ...]]] = {}
        self.read: dict[str, list[int]] = {}
        self.members: dict[str, Any] = {}
        self.retried: set[int] = set()
        self.running: list[RunningClient] = []
        """Programs that go on until they are stopped."""

    def ends(self) -> dict[str, int]:
        return {name: asked_again(partial(self.end, name)) for name in self.topics}

    def end(self, name: str) -> int:
        asked = TopicPartition(self.topics[name], 0)
        return int(self.consumers[name].get_watermark_offsets(asked, timeout=DEADLINE_S)[1])

    def committed(self) -> dict[str, int]:
        asked = [TopicPartition(self.topics["kcat"], 0)]
        found = {
            name: asked_again(partial(self.consumers[name].committed, asked, timeout=DEADLINE_S)) for name in MEMBERS
        }
        return {name: offsets[0].offset for name, offsets in found.items()}

    def wait_for_growth(self) -> None:
        """Until every producer has written so many more records, and every group has read on."""
        ends, committed = self.ends(), self.committed()
        for what, now, before in (("records", self.ends, ends), ("commits", self.committed, committed)):
            wait_for(f"{what} of each client", partial(self.have_grown, now, before))

    def have_grown(self, now: Callable[[], dict[str, int]], before: dict[str, int]) -> bool:
        """Fails if a program has ended: nothing of it would grow any more."""
        for client in self.running:
            client.check()
        return all(count >= before[name] + RECORDS_BETWEEN_KILLS for name, count in now().items())


def asked_of(name: str, topic: str) -> dict[str, Any]:
    """What any of the programs needs to know."""
    return {"group": f"group-{name}", "topic": topic, "instance": None, "strategy": "range", "session_ms": SESSION_MS}


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traffic]:
    settings = {"offsets.topic.num.partitions": 3}
    with LocalCluster(tmp_path_factory.mktemp("cluster"), settings=settings, restart_after_s=0.2) as cluster:
        bootstrap = cluster.bootstrap
        traffic = Traffic(bootstrap)
        topics = traffic.topics
        for future in traffic.admin.create_topics([NewTopic(topic, 1, 1) for topic in topics.values()]).values():
            future.result(DEADLINE_S)
        with ExitStack() as stack:

            def started(programs: dict[str, str], command: str, topic: str | None = None) -> dict[str, Any]:
                asked = {name: asked_of(name, topic or topics[name]) for name in programs}
                return {
                    name: stack.enter_context(running_client(program, command, bootstrap, asked[name]))
                    for name, program in programs.items()
                }

            producers, members = started(PRODUCERS, "produce"), started(MEMBERS, "member", topics["kcat"])
            consumers = started(dict.fromkeys(PRODUCERS, "confluent_client"), "consume")
            traffic.running = [*producers.values(), *members.values(), *consumers.values()]
            with Kcat(bootstrap, topics["kcat"]) as kcat:
                for _ in range(KILLS):
                    traffic.wait_for_growth()
                    cluster.kill("broker-1")
                    cluster.wait_restarted("broker-1")
                traffic.wait_for_growth()
            traffic.sent = {name: client.stop() for name, client in producers.items()} | {"kcat": {"sent": kcat.sent}}
            traffic.read = {name: client.stop()["offsets"] for name, client in consumers.items()}
            traffic.read["kcat"], traffic.retried = kcat.offsets, kcat.retried
            wait_for("all committed", lambda: set(traffic.committed().values()) == {traffic.ends()["kcat"]})
            traffic.members = {name: client.stop() for name, client in members.items()}
        traffic.log = {name: read_with_kcat(bootstrap, topic) for name, topic in topics.items()}
        for consumer in traffic.consumers.values():
            consumer.close()
        yield traffic


@pytest.mark.parametrize("client", PRODUCERS)
def test_acknowledged_records_are_read_once_and_in_order(traffic: Traffic, client: str) -> None:
    values = [int(value) for _, _, value, _, _ in traffic.log[client]]
    assert values == list(range(traffic.sent[client]["sent"]))
    assert traffic.sent[client]["acknowledged"] == [[value, value] for value in values]


def test_records_of_kcat_are_read_in_order_and_twice_only_after_a_retry(traffic: Traffic) -> None:
    values = [int(value) for _, _, value, _, _ in traffic.log["kcat"]]
    assert list(dict.fromkeys(values)) == list(range(traffic.sent["kcat"]["sent"]))
    assert {value for value, count in Counter(values).items() if count > 1} <= traffic.retried


@pytest.mark.parametrize("client", CLIENTS)
def test_a_reader_that_went_on_saw_every_record_once(traffic: Traffic, client: str) -> None:
    assert traffic.read[client] == [offset for offset, *_ in traffic.log[client]]


@pytest.mark.parametrize("client", MEMBERS)
def test_a_member_of_a_group_went_on_from_what_it_had_committed(traffic: Traffic, client: str) -> None:
    """What it read is told of when a commit of it was acknowledged: some may be missing where the broker died."""
    member = traffic.members[client]
    written = [value.decode() for _, _, value, _, _ in traffic.log["kcat"]]
    assert member["error"] is None
    assert member["values"][-1] == written[-1]
    in_order = iter(written)
    assert all(value in in_order for value in member["values"])
