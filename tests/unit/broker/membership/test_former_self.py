"""A broker that starts on log dirs whose broker is registered: its former life, or the owner of the original."""

import shutil
from pathlib import Path

import pytest
import trio

from pipeline.coordination.znodes import BrokerRegistration, broker_path
from pipeline.errors import ConfigurationError
from pipeline.model import BrokerId
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import TIMEOUT_S, Start, batch

SHORT = {"zookeeper_session_timeout_ms": 1000}
PATH = broker_path(BrokerId(1))


async def test_a_broker_on_a_copy_of_the_log_dirs_of_a_living_one_is_refused_and_harms_nothing(
    start: Start, zookeeper_twin: MemoryZooKeeper, tmp_path: Path
) -> None:
    async with start(1) as broker:
        await broker.create("t")
        assert (await broker.produce("t", batch(b"a"))).base_offset == 0
        shutil.copytree(tmp_path / "broker-1", tmp_path / "copy")
        assert (await broker.produce("t", batch(b"b"))).base_offset == 1
        registered = zookeeper_twin.znodes.find(PATH)
        with trio.fail_after(TIMEOUT_S), pytest.raises(ConfigurationError, match="alive: one of the two has a copy"):
            async with start(1, log_dirs=str(tmp_path / "copy"), **SHORT):
                pass
        assert zookeeper_twin.znodes.find(PATH) == registered
        assert (await broker.produce("t", batch(b"c"))).base_offset == 2


async def test_a_broker_that_lost_its_session_gives_way_to_one_on_a_copy_of_its_log_dirs(
    start: Start, zookeeper_twin: MemoryZooKeeper, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="alive: one of the two has a copy"):
        async with start(1) as broker:
            await broker.create("t")
            shutil.copytree(tmp_path / "broker-1", tmp_path / "copy")
            broker.zookeeper.history.suspended()
            zookeeper_twin.znodes.delete(PATH, -1)  # as its session does that times out
            async with start(1, log_dirs=str(tmp_path / "copy"), **SHORT) as other:
                assert (await other.produce("t", batch(b"a"))).error_code == 0
                zookeeper_twin.expire(broker.zookeeper)
                with trio.fail_after(TIMEOUT_S):
                    await trio.sleep_forever()


@pytest.mark.parametrize("is_of_older_version", [True, False])
async def test_a_former_life_is_replaced_at_once_and_that_of_another_boot_when_its_session_ends(
    start: Start, zookeeper_twin: MemoryZooKeeper, *, is_of_older_version: bool
) -> None:
    async with zookeeper_twin.open() as client:
        async with start(1):
            data = (await client.get(PATH)).data
        found = BrokerRegistration.decode(BrokerId(1), data)
        assert found.locks
        former = data.replace(found.locks[0].encode(), b"another boot:1:2")
        if is_of_older_version:
            former = data.replace(b'"locks"', b'"ignored"')
        async with zookeeper_twin.open() as dead, trio.open_nursery() as nursery:
            await dead.create(PATH, former, ephemeral=True)
            if not is_of_older_version:

                def end(_client: object, path: str) -> None:
                    if path == PATH and zookeeper_twin.znodes.find_or_none(PATH) is not None:
                        zookeeper_twin.before_request = None
                        nursery.start_soon(dead.delete, PATH)

                zookeeper_twin.before_request = end
            async with start(1):
                assert zookeeper_twin.znodes.find(PATH).data != former
