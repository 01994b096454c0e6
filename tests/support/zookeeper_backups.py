"""Backups of a real ZooKeeper's data, and a ZooKeeper that goes on from one."""

import shutil
from pathlib import Path

import trio

from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.coordination.zookeeper import open_zookeeper

FOREIGN_WRITES = 200


async def back_up(zookeeper: ZooKeeperProcess) -> Path:
    """A copy of ZooKeeper's data as of now."""
    copy = zookeeper.directory / f"backup-{trio.current_time()}"
    await zookeeper.stop()
    await trio.to_thread.run_sync(shutil.copytree, zookeeper.directory / "data", copy)
    await zookeeper.start()
    return copy


async def restore(zookeeper: ZooKeeperProcess, backup: Path, foreign_writes: int = FOREIGN_WRITES) -> None:
    """Have ZooKeeper go on from this copy. It refuses sessions until it has counted up to what they have seen."""
    await zookeeper.stop()
    await trio.to_thread.run_sync(shutil.rmtree, zookeeper.directory / "data")
    await trio.to_thread.run_sync(shutil.copytree, backup, zookeeper.directory / "data")
    await zookeeper.start()
    if not foreign_writes:
        return
    async with open_zookeeper(f"{zookeeper.connect}/foreign") as client:
        for number in range(foreign_writes):
            await client.create(f"/{trio.current_time()}-{number}")
