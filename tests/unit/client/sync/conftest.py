"""A broker on a thread of its own, for producers that block the thread of the test."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from tests.support.brokers import serving_cluster

DEADLINE_S = 60


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    """Address of a broker with the topic t of two partitions."""
    ready = threading.Event()
    found: list[str] = []
    stop: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    async def serve() -> None:
        async with serving_cluster(tmp_path) as cluster:
            await create_topics(cluster, [NewTopic(name="t", partitions=2)])
            found.append(",".join(map(str, cluster.config.bootstrap)))
            stopped = trio.Event()
            stop.append((trio.lowlevel.current_trio_token(), stopped))
            ready.set()
            await stopped.wait()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert ready.wait(DEADLINE_S)
    yield found[0]
    token, stopped = stop[0]
    token.run_sync_soon(stopped.set)
    thread.join(DEADLINE_S)


@pytest.fixture
def nowhere() -> Iterator[str]:
    """Address at which connections are accepted and never answered."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
