import trio

from pipeline.coordination.interface import NodeStat
from pipeline.coordination.registration import keep_registered
from pipeline.errors import CoordinationUnavailableError
from pipeline.testing.memory_zookeeper import MemoryZooKeeper

PATH = "/ids/1"


async def test_a_zookeeper_that_goes_away_in_the_middle_is_waited_for() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.open() as former, zookeeper.open() as client, trio.open_nursery() as nursery:
        await former.create(PATH, b"former life", ephemeral=True)
        plain = client.exists
        is_away = True

        async def exists(path: str) -> NodeStat | None:
            nonlocal is_away
            if is_away:
                is_away = False
                raise CoordinationUnavailableError(path, "no answer in time")
            return await plain(path)

        client.exists = exists  # type: ignore[method-assign]
        await nursery.start(
            lambda task_status: keep_registered(
                client, PATH, b"me", is_former_self=lambda data: data == b"former life", task_status=task_status
            )
        )
        assert (await client.get(PATH)).data == b"me"
        nursery.cancel_scope.cancel()
