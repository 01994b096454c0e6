"""Mirrors and consumers that meet in a real ZooKeeper with users: their znodes get and lose ACLs while they run."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.cli.child_services import ServiceUnit, stop_in_reverse
from pipeline.client.admin.topics import NewTopic, create_topics, list_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import OffsetReset, ProducerConfig
from pipeline.client.connector.config import ConnectorConfig
from pipeline.client.connector.connector import open_consumer_connector
from pipeline.client.producer.producer import open_producer
from pipeline.client.streams.stream import MessageStream
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.coordination.zookeeper import ZooKeeper, open_zookeeper
from pipeline.coordination.zookeeper_security import ZooKeeperSecurity
from pipeline.errors import CoordinationRefusedError
from pipeline.model import TopicPartition
from pipeline.processes import ProcessEndedError
from tests.support.brokers import Brokers, clock, replicated_cluster
from tests.support.copies import log_ends
from tests.support.mirror_group import MirrorGroupSite
from tests.support.mirror_site import Victim
from tests.support.secured_zookeeper import acl_of, protected
from tests.support.zookeeper_services import soon

pytestmark = pytest.mark.long

DIGEST = {"zookeeper.auth.scheme": "digest"}
"""Needs no list of users in ZooKeeper: ACLs alone protect."""
BROKER = {"zookeeper.auth.username": "broker", "zookeeper.auth.password": "of-brokers", **DIGEST}
MIRROR = {"zookeeper.auth.username": "mirror", "zookeeper.auth.password": "of-mirrors", **DIGEST}
READER = {"zookeeper.auth.username": "reader", "zookeeper.auth.password": "of-readers", **DIGEST}
SECURED = {"zookeeper.set.acl": True}
PARTITIONS = 4
GROUP = "group"
OPEN = {"world:anyone": 31}
DEADLINE_S = 60
POLL_S = 0.05
COMMAND = [sys.executable, "-m", "pipeline", "cluster", "secure-znodes"]


@dataclass(frozen=True, slots=True)
class Chroot:
    """The znodes of one cluster, whose brokers have a user."""

    connect: str
    security: ZooKeeperSecurity

    def open(self, *settings: Mapping[str, Any]) -> Any:
        security = protected(*settings) if settings else self.security
        return open_zookeeper(self.connect, security=security)


@dataclass(frozen=True, slots=True)
class Clusters:
    """A source and a hub of one broker each, in chroots of one ZooKeeper."""

    source: Brokers
    hub: Brokers
    at_hub: Chroot


@asynccontextmanager
async def clusters(directory: Path) -> AsyncIterator[Clusters]:
    async with ZooKeeperProcess(directory / "zookeeper") as process:
        source, hub = (Chroot(f"{process.connect}/{name}", protected(BROKER, SECURED)) for name in ("source", "hub"))
        async with (
            replicated_cluster(directory / "source", 1, zookeeper=source) as first,
            replicated_cluster(directory / "hub", 1, zookeeper=hub) as second,
        ):
            await create_topics(first.cluster, [NewTopic(name="clicks", partitions=PARTITIONS)])
            yield Clusters(first, second, hub)


async def bootstrap(brokers: Brokers) -> str:
    return ",".join(map(str, await brokers.addresses()))


async def publish(cluster: Cluster, topic: str, value: bytes) -> None:
    """One record to each partition."""
    async with open_producer(cluster, ProducerConfig(linger_ms=0), clock=clock, rng=Random(1)) as producer:
        for partition in range(PARTITIONS):
            await producer.send(topic, value, partition=partition)


async def until_copied(hub: Cluster, count: int) -> None:
    """Wait until the replica has so many records of each partition."""
    with trio.fail_after(DEADLINE_S):
        while "clicks" not in await list_topics(hub):
            await trio.sleep(POLL_S)
        wanted = [TopicPartition("clicks", number) for number in range(PARTITIONS)]
        while {*(await log_ends(hub, wanted)).values()} != {count}:
            await trio.sleep(POLL_S)


async def set_acls(chroot: Chroot, kind: str, path: str, user: Mapping[str, Any], directory: Path) -> str:
    """Run the command of the docs with a user, and return its output."""
    settings = directory / "user.properties"
    settings.write_text("".join(f"{key}={value}\n" for key, value in user.items()))
    command = (*COMMAND, "--zookeeper", chroot.connect, "--zookeeper.acl", kind, "--path", path)
    call = partial(subprocess.run, check=False, capture_output=True, text=True, timeout=120)
    done = await trio.to_thread.run_sync(call, (*command, "--client-config", str(settings)))
    assert done.returncode == 0, done.stderr
    assert user["zookeeper.auth.password"] not in done.stdout + done.stderr
    return str(done.stderr)


async def tree(client: ZooKeeper, root: str) -> list[str]:
    """Return a znode and all below it."""
    found = [root]
    for name in await client.children(root):
        found += await tree(client, f"{root}/{name}")
    return found


async def owners(client: ZooKeeper, root: str) -> dict[str, set[str]]:
    """Return who may change each znode of a tree: `digest:mirror:...` as `mirror`, and everybody as `anyone`."""
    found = {}
    for path in await tree(client, root):
        acl = await acl_of(client, path)
        assert acl == OPEN or acl.pop("world:anyone") == 1, path
        found[path] = {who.split(":")[1] for who in acl}
    return found


def mirror_unit(directory: Path, name: str, settings: Mapping[str, Any]) -> ServiceUnit:
    return ServiceUnit(name, "mirror", directory / name, settings)


async def restart(victim: Victim, settings: Mapping[str, Any]) -> None:
    """Stop a mirror cleanly, and start it with other settings."""
    assert isinstance(victim.unit, ServiceUnit)
    await victim.unit.stop()
    victim.unit.settings = settings
    await victim.start()


async def test_a_group_of_mirrors_goes_on_while_its_znodes_are_protected_and_opened_again(tmp_path: Path) -> None:
    async with clusters(tmp_path) as site:
        bare: dict[str, Any] = {
            "destination.bootstrap.servers": await bootstrap(site.hub),
            "sources": [{"name": "east", "bootstrap.servers": await bootstrap(site.source)}],
            "topics": ["clicks"],
            "zookeeper.connect": site.at_hub.connect,
            "mirror.group": GROUP,
            "mirror.rebalance.interval.ms": 2000,
            "refresh.interval.ms": 200,
            "zookeeper.session.timeout.ms": 3000,
        }
        plain, secured = {**bare, **MIRROR}, {**bare, **MIRROR, **SECURED}
        members = [Victim(mirror_unit(tmp_path, f"mirror-{number}", plain)) for number in range(2)]
        stranger = mirror_unit(tmp_path, "stranger", bare)
        group = MirrorGroupSite(site=None, members=members)  # type: ignore[arg-type] # clusters of this process
        root = f"/mirrors/{GROUP}"
        try:
            async with trio.open_nursery() as nursery, site.at_hub.open({}) as watcher:
                for member in members:
                    nursery.start_soon(member.start)
                await publish(site.source.cluster, "clicks", b"1")
                await group.until_shared(0, 1, partitions=PARTITIONS)
                await until_copied(site.hub.cluster, 1)
                assert {*map(frozenset, (await owners(watcher, root)).values())} == {frozenset({"anyone"})}

                assert "/mirrors: " in await set_acls(site.at_hub, "secure", "/mirrors", MIRROR, tmp_path)
                assert await acl_of(watcher, "/mirrors") == OPEN  # others have groups of their own there
                for path in (root, f"{root}/members", f"{root}/assignment"):
                    assert (await owners(watcher, root))[path] == {"mirror"}
                await publish(site.source.cluster, "clicks", b"2")
                await until_copied(site.hub.cluster, 2)
                await group.until_shared(0, 1, partitions=PARTITIONS)

                for number, other in ((0, 1), (1, 0)):
                    await restart(members[number], secured)
                    await group.until_shared(0, 1, partitions=PARTITIONS)
                    await publish(site.source.cluster, "clicks", b"3")
                    await until_copied(site.hub.cluster, 3 + number)
                    assert (await group.owned())[other]
                assert {*map(frozenset, (await owners(watcher, root)).values())} == {frozenset({"mirror"})}
                for refused in (
                    watcher.set(f"{root}/assignment", b"{}"),
                    watcher.create(f"{root}/members/mallory"),
                    watcher.delete(f"{root}/leader"),
                ):
                    with pytest.raises(CoordinationRefusedError):
                        await refused
                await stranger_is_told(stranger)
                await group.kill(1)
                await group.until_owned(lambda found: found[0] == {*range(PARTITIONS)})
                await publish(site.source.cluster, "clicks", b"5")
                await until_copied(site.hub.cluster, 5)
                await members[1].start()
                await group.until_shared(0, 1, partitions=PARTITIONS)

                await set_acls(site.at_hub, "unsecure", "/mirrors", MIRROR, tmp_path)
                for member in members:
                    await restart(member, plain)
                await group.until_shared(0, 1, partitions=PARTITIONS)
                assert {*map(frozenset, (await owners(watcher, root)).values())} == {frozenset({"anyone"})}
                await publish(site.source.cluster, "clicks", b"6")
                await until_copied(site.hub.cluster, 6)
        finally:
            await stop_in_reverse([[stranger, *(member.unit for member in members)]])


async def stranger_is_told(unit: ServiceUnit) -> None:
    """A mirror without the user of its group ends as soon as it has tried to join, and says why."""
    with suppress(ProcessEndedError):
        await unit.start()
    with trio.fail_after(DEADLINE_S):
        assert await unit.wait() != 0
    log = (unit.directory / "mirror.log").read_text()
    assert "refuses a client without zookeeper.auth.username" in log
    assert "Traceback" not in log


async def read(stream: MessageStream, values: list[tuple[int, bytes | None]]) -> None:
    async for record in stream:
        values += [(record.topic_partition.partition, record.value)]


async def until(is_done: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not is_done():
            await trio.sleep(POLL_S)


async def test_a_group_of_consumers_goes_on_while_its_znodes_are_protected_and_opened_again(tmp_path: Path) -> None:
    async with clusters(tmp_path) as site, trio.open_nursery() as nursery, site.at_hub.open({}) as watcher:
        hub = site.hub.cluster
        await create_topics(hub, [NewTopic(name="orders", partitions=PARTITIONS)])
        root = "/consumers/readers"
        values: list[tuple[int, bytes | None]] = []

        @asynccontextmanager
        async def member(name: str, *settings: Mapping[str, Any]) -> AsyncIterator[None]:
            config = ConnectorConfig(
                group_id="readers",
                consumer_id=name,
                zookeeper_security=protected(*settings),
                rebalance_backoff_ms=200,
                auto_commit_interval_ms=100,
                auto_offset_reset=OffsetReset.EARLIEST,
                max_wait_ms=100,
            )
            async with (
                open_consumer_connector(hub, site.at_hub.connect, config, clock=clock, rng=Random(name)) as connector,
                trio.open_nursery() as readers,
            ):
                for stream in (await connector.create_message_streams({"orders": 1}))["orders"]:
                    readers.start_soon(read, stream, values)
                yield
                await connector.shutdown()

        async def owned_by(*names: str) -> None:
            """Wait until these members have all partitions between them."""
            with trio.fail_after(DEADLINE_S):
                while True:
                    nodes = await watcher.get_each([f"{root}/owners/orders/{number}" for number in range(PARTITIONS)])
                    found = [None if node is None else node.data.decode().rpartition("-")[0] for node in nodes]
                    if {*found} == {f"readers_{name}" for name in names}:
                        return
                    await trio.sleep(POLL_S)

        async def consumed(count: int) -> None:
            await publish(hub, "orders", b"%d" % count)
            await until(lambda: len(values) >= count * PARTITIONS)

        async with member("first", READER):
            async with member("second", READER, SECURED):
                await owned_by("first", "second")
                await consumed(1)
                await set_acls(site.at_hub, "secure", "/consumers", READER, tmp_path)
                await consumed(2)
                stored = f"{root}/offsets/orders"
                assert (await owners(watcher, root))[f"{root}/ids"] == {"reader"}
                assert {who for path, names in (await owners(watcher, stored)).items() for who in names} == {"reader"}
                for refused in (
                    watcher.set(f"{stored}/0", b"0"),
                    watcher.delete(f"{root}/owners/orders/0"),
                    watcher.create(f"{root}/ids/mallory"),
                ):
                    with pytest.raises(CoordinationRefusedError):
                        await refused
                with pytest.raises(CoordinationRefusedError, match=r"zookeeper\.auth\.username"):
                    await soon(stranger(member))
            await owned_by("first")
            await consumed(3)
            async with member("third", READER, SECURED):
                await owned_by("first", "third")
                await consumed(4)
                await set_acls(site.at_hub, "unsecure", "/consumers", READER, tmp_path)
                assert {*map(frozenset, (await owners(watcher, root)).values())} == {frozenset({"anyone"})}
                async with member("open"):
                    await owned_by("first", "third", "open")
                    await consumed(5)
        assert sorted(values) == sorted((partition, b"%d" % n) for n in range(1, 6) for partition in range(PARTITIONS))
        nursery.cancel_scope.cancel()


async def stranger(member: Callable[[str], Any]) -> None:
    async with member("stranger"):
        pytest.fail("a consumer without the user of its group took part")
