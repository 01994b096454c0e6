"""Brokers beside a real ZooKeeper with users: opened, secured while they run, refused, and after a backup."""

import subprocess
import sys
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics, list_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.coordination.embedded import ServerProtection, ZooKeeperProcess
from pipeline.coordination.zookeeper import ZooKeeper, open_zookeeper
from pipeline.coordination.zookeeper_security import OPEN_ZOOKEEPER, ZooKeeperSecurity
from pipeline.errors import CoordinationRefusedError, NoNodeError
from tests.support.brokers import Brokers, clock, replicated_cluster
from tests.support.secured_zookeeper import BROKER, PASSWORD, USERS, acl_of, encrypted, protected, tls_settings
from tests.support.zookeeper_backups import back_up, restore

pytestmark = pytest.mark.long

SECURED = {"zookeeper.set.acl": True}
SETTINGS: dict[str, Any] = {
    "replica_fetch_wait_max_ms": 50,
    "min_insync_replicas": 1,
    "controlled_shutdown_enable": "true",
}
POLL_S = 0.05
READABLE = {"sasl:broker": 31, "world:anyone": 1}
COMMAND = [sys.executable, "-m", "pipeline"]


class Site:
    """A chroot, and the credentials with which brokers that start come in."""

    def __init__(self, process: ZooKeeperProcess, security: ZooKeeperSecurity = OPEN_ZOOKEEPER) -> None:
        self.process = process
        self.security = security

    def open(self) -> AbstractAsyncContextManager[ZooKeeper]:
        return open_zookeeper(f"{self.process.connect}/site", security=self.security)


async def produce(cluster: Cluster, count: int = 1) -> None:
    with trio.fail_after(120):
        async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
            for _ in range(count):
                for partition in range(2):
                    await producer.send("t", b"a", partition=partition)


async def restarted(brokers: Brokers) -> None:
    """Restart one broker after the other, each once all are in sync."""
    for broker in (1, 2):
        await brokers.stop(broker)
        await produce(brokers.cluster)
        await brokers.start(broker)
        for partition in range(2):
            await brokers.wait_for_isr("t", 2, partition)


async def acl_once_there(client: ZooKeeper, path: str) -> dict[str, int]:
    """Return the permissions of a znode; a broker whose session has just expired registers again."""
    with trio.fail_after(60):
        while True:
            with suppress(NoNodeError):
                return await acl_of(client, path)
            await trio.sleep(0.05)


async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    call = partial(subprocess.run, [*COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=120)
    return await trio.to_thread.run_sync(call)


async def test_a_running_cluster_goes_from_open_to_secured_znodes(tmp_path: Path) -> None:
    """The steps of docs/security/zookeeper.md. Records are produced at every step, and none is lost."""
    process = ZooKeeperProcess(tmp_path / "zookeeper")
    site = Site(process)
    async with process, replicated_cluster(tmp_path / "brokers", 2, zookeeper=site, **SETTINGS) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=2, replication_factor=2)])
        await produce(brokers.cluster)

        await process.stop()  # 1
        process.protection = ServerProtection(users=USERS, requires_user=False)
        await process.start()
        await produce(brokers.cluster)
        site.security = protected(BROKER)  # 2
        await restarted(brokers)
        site.security = protected(BROKER, SECURED)  # 3
        await restarted(brokers)
        settings = tmp_path / "broker.properties"  # 4
        settings.write_text("".join(f"{key}={value}\n" for key, value in BROKER.items()))
        command = ("cluster", "secure-znodes", "--zookeeper", f"{process.connect}/site", "--zookeeper.acl")
        done = await run(*command, "secure", "--client-config", str(settings))
        assert done.returncode == 0, done.stderr
        assert "/brokers: " in done.stderr
        assert done.stdout.startswith("Set the ACLs of ")
        assert PASSWORD not in done.stdout + done.stderr
        await produce(brokers.cluster)
        async with open_zookeeper(f"{process.connect}/site") as stranger:
            for path in ("/brokers/ids/1", "/brokers/topics/t/partitions/0/state", "/controller", "/config/topics/t"):
                assert await acl_of(stranger, path) == READABLE
            for refused in (stranger.delete("/controller"), stranger.set("/brokers/topics/t", b"{}")):
                with pytest.raises(CoordinationRefusedError):
                    await refused

        await process.stop()  # 5
        process.protection = ServerProtection(users=USERS, requires_user=True)
        await process.start()
        await create_topics(brokers.cluster, [NewTopic(name="later", partitions=1, replication_factor=2)])
        await produce(brokers.cluster)
        with trio.fail_after(120):  # the broker that is asked may learn of the topic after the controller
            while {*await list_topics(brokers.cluster)} != {"t", "later"}:
                await trio.sleep(POLL_S)
        # One for each call of `produce`, of which each round of restarts makes two. A follower that fell behind for
        # longer than the lag time has left the ISR, and acknowledgements do not wait for it.
        await brokers.wait_until(
            lambda: {found.log.log_end_offset for index in range(2) for found in brokers.replicas("t", index)} == {8}
        )


@pytest.mark.parametrize("requires_user", [True, False])
async def test_a_broker_without_credentials_is_refused_and_told_why(tmp_path: Path, requires_user: bool) -> None:
    process = ZooKeeperProcess(tmp_path / "zookeeper", protection=encrypted(tmp_path, requires_user=requires_user))
    tls = tls_settings(tmp_path)
    async with process:
        owner = Site(process, protected(BROKER, SECURED, tls))
        async with replicated_cluster(tmp_path / "brokers", 1, zookeeper=owner):
            settings = {
                "broker.id": 2,
                "log.dirs": str(tmp_path / "stranger"),
                "zookeeper.connect": f"{process.connect}/site",
                "listeners": "PLAINTEXT://127.0.0.1:0",
                **tls,
            }
            file = tmp_path / "stranger.toml"
            file.write_text(
                "".join(
                    f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}\n"
                    for key, value in settings.items()
                )
            )
            ended = await run("broker", "start", "--config", str(file))
            assert ended.returncode not in {0, None}
            assert "a client without zookeeper.auth.username" in ended.stderr
            assert "Traceback" not in ended.stderr


async def test_brokers_with_acls_follow_a_zookeeper_that_came_back_older(tmp_path: Path) -> None:
    process = ZooKeeperProcess(tmp_path / "zookeeper", protection=ServerProtection(users=USERS, requires_user=False))
    site = Site(process, protected(BROKER, SECURED))
    async with process, replicated_cluster(tmp_path / "brokers", 2, zookeeper=site, **SETTINGS) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=2, replication_factor=2)])
        await produce(brokers.cluster)
        backup = await back_up(process)
        await restarted(brokers)
        used = {index: max(found.leader_epoch for found in brokers.replicas("t", index)) for index in range(2)}
        await restore(process, backup)

        def is_led_anew(index: int) -> bool:
            return any(r.is_leader and r.leader_epoch > used[index] for r in brokers.replicas("t", index))

        await brokers.wait_until(lambda: all(map(is_led_anew, range(2))), 120)
        await produce(brokers.cluster)
        await brokers.wait_until(
            lambda: {r.log.log_end_offset for i in range(2) for r in brokers.replicas("t", i)} == {4}, 120
        )
        async with site.open() as client:
            for path in ("/brokers/ids/1", "/brokers/topics/t/partitions/0/state", "/controller"):
                assert await acl_once_there(client, path) == READABLE
