"""A real ZooKeeper, and a broker's watcher of topics that are made and deleted."""

import uuid
from pathlib import Path

import pytest
import trio

from pipeline.broker.cluster.topic_watcher import TopicWatcher
from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.coordination.interface import CreateNode, DeleteNode
from pipeline.coordination.znodes import TOPICS, TopicAssignment
from pipeline.coordination.zookeeper import ZooKeeper, open_zookeeper
from pipeline.model import BrokerId

pytestmark = pytest.mark.long

ROUNDS = 5
AT_ONCE = 100
DEADLINE_S = 120
CONFIG = BrokerConfig.from_settings({"broker.id": 1, "log.dirs": "/none", "zookeeper.connect": "given"})


def entries(client: ZooKeeper) -> tuple[int, int, int]:
    """Paths that the client, and kazoo, know watches of; kazoo forgets one once the server has."""
    kazoo = client._session.kazoo
    return len(client._watches), len(kazoo._data_watchers), len(kazoo._child_watchers)


async def test_watches_of_deleted_topics_are_taken_back(tmp_path: Path) -> None:
    view = ClusterView("c")
    async with (
        ZooKeeperProcess(tmp_path) as process,
        open_zookeeper(f"{process.connect}/site") as client,
        open_zookeeper(f"{process.connect}/site") as other,
        trio.open_nursery() as nursery,
    ):
        await other.create(TOPICS)
        await nursery.start(TopicWatcher(client, DynamicSettings(CONFIG), view).run)
        before = entries(client)
        with trio.fail_after(DEADLINE_S):
            for number in range(ROUNDS):
                assignments = [
                    TopicAssignment(topic=f"t-{number}-{n}", topic_id=uuid.uuid4(), partitions={0: (BrokerId(1),)})
                    for n in range(AT_ONCE)
                ]
                await other.transaction([CreateNode(path=made.path, data=made.encode()) for made in assignments])
                await view.wait_until(lambda view: len(list(view.topics())) == AT_ONCE)
                assert entries(client) > before
                await other.transaction([DeleteNode(path=made.path) for made in assignments])
                await view.wait_until(lambda view: not list(view.topics()))
                while entries(client) != before:
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_a_znode_that_is_watched_again_is_followed(tmp_path: Path) -> None:
    async with ZooKeeperProcess(tmp_path) as process, open_zookeeper(f"{process.connect}/site") as client:
        for number in range(200):
            dropped = client.watch_data("/a")
            with trio.fail_after(DEADLINE_S):
                first = await anext(dropped)
                assert first is None or first.data == str(number - 1).encode()
                del dropped
                again = client.watch_data("/a")
                await anext(again)
                if first is None:
                    await client.create("/a", str(number).encode())
                else:
                    await client.set("/a", str(number).encode())
                found = await anext(again)
                assert found is not None and found.data == str(number).encode()
                del again
                await client.exists("/a")
