"""Replicas in two log dirs, of which one hangs."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.replicas.logs import log_config
from pipeline.broker.replicas.replicas import Replicas
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.replica_fetchers import replica_fetchers
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.broker.settings.topic import topic_settings
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.files import DiskFiles
from pipeline.model import TopicPartition
from pipeline.net.dialing import PLAIN_DIALER
from pipeline.testing.faulty_files import FaultyFiles
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Broker, Observed
from tests.support.replicas import CONFIG, OWN


@asynccontextmanager
async def opened(
    path: Path, log_dirs: Sequence[str] = ("a", "b")
) -> AsyncIterator[tuple[Replicas, LogDirectories, FaultyFiles]]:
    """Replicas in the log dirs `a` and `b`; the first one hangs when a test says so, until the test ends at most."""
    files, view, settings = FaultyFiles(DiskFiles(), random.Random(1)), ClusterView("c"), DynamicSettings(CONFIG)
    directories = LogDirectories.open(
        [path / name for name in log_dirs],
        files,
        log_config(topic_settings({}, CONFIG), 1_000_000),
        broker_id=OWN,
        cluster_id="c",
        rng=random.Random(1),
        now_ms=NOW_MS,
    )
    replicas = Replicas(
        directories,
        DiskThreads(),
        Observed(),
        lambda: NOW_MS,
        own_id=OWN,
        in_sync=InSyncWatch(view, 10.0),
        fetchers=replica_fetchers(settings, view, lambda: NOW_MS, PLAIN_DIALER),
        producer_expiration_ms=1_000_000,
    )
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(replicas.logs.pending.run)
            await replicas.logs.settle()
            try:
                yield replicas, directories, files
            finally:
                files.released.set()
            nursery.cancel_scope.cancel()
    finally:
        directories.close()


def names(indexes: Sequence[int]) -> list[TopicPartition]:
    return [TopicPartition("t", index) for index in indexes]


def leaders(replicas: Replicas) -> dict[int, int]:
    """The leader epoch of each partition that is led here."""
    found = replicas.partitions.items()
    return {name.partition: partition.leader_epoch for name, partition in found if partition.is_leader}


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(TIMEOUT_S):
        while not is_so():
            await trio.sleep(0.01)


ROLL_S = 40.0
"""Far less than a hang that nobody ends."""
PARTITIONS = 4


def in_dir(log_dir: Path) -> list[int]:
    return [index for index in range(PARTITIONS) if (log_dir / f"t-{index}").exists()]


def base_offsets(broker: Broker, partition: int) -> list[int]:
    """The base offsets of all batches of a partition, in their order."""
    log = broker.handle.replicas.partitions[names([partition])[0]].log
    return [header.base_offset for header in log.headers(log.log_start_offset)]
