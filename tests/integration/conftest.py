"""What starts slowly and is shared by all integration tests: a Spark session, a real HDFS."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.hdfs import HdfsCluster, running_hdfs


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pipeline.hadoop.spark_session import local_session

    session = local_session(app_name="tests", is_short=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """One NameNode and one DataNode for all tests, which none may stop."""
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster
