"""Controllers against a real ZooKeeper: who is elected, and how quickly many leaders move."""

import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest
import trio

from pipeline.coordination.cluster_znodes import ControllerEpoch
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.coordination.zookeeper import ZooKeeper, open_zookeeper
from tests.support.controllers import is_led, make_topic, register, running, state_of

pytestmark = pytest.mark.long

LEADERS = 2000
MAX_CPU_S = 3.0


@dataclass(frozen=True)
class Real:
    """A ZooKeeper with a chroot of its own."""

    connect: str

    def open(self) -> AbstractAsyncContextManager[ZooKeeper]:
        return open_zookeeper(self.connect)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as process:
        yield process


async def test_the_next_controller_is_elected_in_the_next_epoch(server: ZooKeeperProcess) -> None:
    zookeeper = Real(f"{server.connect}/elections")
    async with running(zookeeper, 1) as first, running(zookeeper, 2) as second, running(zookeeper, 3) as third:
        assert [rig.controller.is_active for rig in (first, second, third)] == [True, False, False]
        first.nursery.cancel_scope.cancel()
        await first.client.client.close()
        for rig in (second, third):
            await rig.until(lambda view: view.controller in {2, 3})
        assert second.view.controller == third.view.controller
        assert (await second.client.get(ControllerEpoch.PATH)).data == b"2"


async def test_a_lost_broker_with_2000_leaders(server: ZooKeeperProcess) -> None:
    zookeeper = Real(f"{server.connect}/leaders")
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        async with zookeeper.open() as dying:
            await register(dying, 2)
            await rig.until(lambda view: 2 in view.brokers)
            await make_topic(other, "t", [(2, 1)] * LEADERS)
            await rig.until(is_led("t", LEADERS))
            used_s, started = time.process_time(), trio.current_time()
        await rig.until(
            lambda view: all(found.leader == 1 for topic in view.topics() for found in topic.partitions.values())
        )
        taken_s, cpu_s = trio.current_time() - started, time.process_time() - used_s
        print(f"{LEADERS} leaders moved in {taken_s:.2f} s, {cpu_s:.2f} s CPU")
        assert cpu_s < MAX_CPU_S
        assert (await state_of(other, "t", LEADERS - 1)).leader_epoch == 1
