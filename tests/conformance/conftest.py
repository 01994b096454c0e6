"""Servers that the tests of foreign clients share."""

from collections.abc import Iterator

import pytest

from pipeline.testing.local_cluster import LocalCluster
from tests.support.kafka import running_kafka


@pytest.fixture(scope="session")
def our_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of one broker with default settings, which no test may stop."""
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of one Apache Kafka, which no test may stop."""
    with running_kafka(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka.bootstrap
