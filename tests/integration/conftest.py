"""What starts slowly and is shared by all integration tests: a Spark session, a real HDFS."""

from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.coordination.embedded import ZooKeeperProcess
from tests.support.hdfs import HdfsCluster, running_hdfs
from tests.support.zookeeper_services import MemoryService, RealService, Service


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pipeline.hadoop.load.spark_session import local_session

    session = local_session(app_name="tests", is_short=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """One NameNode and one DataNode for all tests, which none may stop."""
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper-to-kill")) as process:
        yield process


@pytest.fixture(params=["memory", "real"])
def service(request: pytest.FixtureRequest) -> Service:
    if request.param == "memory":
        return MemoryService()
    return RealService(request.getfixturevalue("server"))
