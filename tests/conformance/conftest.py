"""Servers that the tests of foreign clients share."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import wait_for
from tests.support.kafka import running_kafka
from tests.support.recorder import Recorder

TABLE_TEST = "test_what_clients_asked.py"
DEADLINE_S = 180
QUIET = {"log_level": 0}
ALL_COORDINATORS = [chr(ord("0") + partition) for partition in range(50)]
"""Groups of which each belongs to another partition of `__consumer_offsets`: the hash of one letter is its code."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What was asked can be compared when all have asked."""
    items.sort(key=lambda item: item.path.name == TABLE_TEST)


@pytest.fixture(scope="session")
def recorder() -> Iterator[Recorder]:
    """Knows what clients asked of `our_broker`."""
    with closing(Recorder()) as recorder:
        yield recorder


@pytest.fixture(scope="session")
def our_broker(recorder: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of one broker, which no test may stop. A recorder sits before it.

    Topics are not made by asking, so that clients are told what is missing, as by the `apache_kafka` of these tests.
    """
    settings: dict[str, str | int | bool] = {
        "advertised.listeners": f"PLAINTEXT://{recorder.address}",
        "auto.create.topics.enable": False,
    }
    with (
        LocalCluster(tmp_path_factory.mktemp("cluster"), settings=settings) as cluster,
        recorder.opened(cluster.bootstrap),
    ):
        yield recorder.address


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of one Apache Kafka, which no test may stop. All of its coordinators are at work."""
    with running_kafka(tmp_path_factory.mktemp("kafka")) as kafka:
        wait_for_coordinators(kafka.bootstrap)
        yield kafka.bootstrap


def wait_for_coordinators(bootstrap: str) -> None:
    """Apache Kafka makes `__consumer_offsets` when first asked; NOT_COORDINATOR is its answer until all is loaded."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": ALL_COORDINATORS[0], **QUIET})
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def answers(call: Callable[..., object], *arguments: object, **options: object) -> bool:
        try:
            call(*arguments, **options)
        except KafkaException:
            return False
        return True

    asked = TopicPartition("never-made", 0)
    wait_for("a coordinator", lambda: answers(consumer.committed, [asked], timeout=DEADLINE_S))
    wait_for(
        "coordinators",
        lambda: all(
            answers(future.result, DEADLINE_S) for future in admin.describe_consumer_groups(ALL_COORDINATORS).values()
        ),
    )
    consumer.close()
