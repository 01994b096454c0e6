"""Consumer groups that move from a live cluster to the hub: confluent-kafka's, and old ones of ZooKeeper."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, TopicPartition
from kazoo.client import KazooClient

from pipeline.client.admin.groups import EMPTY
from pipeline.client.cluster.cluster import Cluster
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.errors import NetworkError
from pipeline.mirror.groups import offset_copier, offset_writer
from tests.support.brokers import serving_cluster
from tests.support.clients import wait_for
from tests.support.group_moves import (
    COPYING,
    after_a_round,
    commit,
    committed_offsets,
    groups_status,
    until_committed,
    until_left_alone,
)
from tests.support.mirrors import CLICKS, Site, make, publish, until, until_copied

pytestmark = pytest.mark.long

DEADLINE_S = 180
VALUES = [b"%d" % number for number in range(40)]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with (
        serving_cluster(tmp_path / "east", group_initial_rebalance_delay_ms=0) as east,
        serving_cluster(tmp_path / "west") as west,
        serving_cluster(tmp_path / "hub", group_initial_rebalance_delay_ms=0) as hub,
    ):
        yield Site(east, west, hub)


def bootstrap_of(cluster: Cluster) -> str:
    return ",".join(str(broker.address) for broker in cluster.view.brokers.values())


@contextmanager
def joined(bootstrap: str) -> Iterator[Consumer]:
    """A member of the group g, which commits only when the test says so."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "g",
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    try:
        yield consumer
    finally:
        consumer.close()


def take(bootstrap: str, count: int, *, offset: int | None = None) -> Sequence[bytes | None]:
    """Read so many records as a member of the group g, commit, and leave. Begins at `offset`, or at the committed."""
    values: list[bytes | None] = []
    last: list[Any] = []
    with joined(bootstrap) as consumer:
        if offset is None:
            consumer.subscribe(["clicks"])
        else:
            consumer.assign([TopicPartition("clicks", 0, offset)])

        def poll() -> bool:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                values.append(message.value())
                last.append(message)
            return len(values) >= count

        wait_for("records", poll, DEADLINE_S)
        consumer.commit(message=last[-1], asynchronous=False)
    return values


async def test_a_group_goes_on_at_the_hub_where_it_stopped(site: Site) -> None:
    await make(site.east)
    await publish(site.east, *VALUES)
    first = await trio.to_thread.run_sync(lambda: take(bootstrap_of(site.east), 15, offset=0))
    async with site.mirroring(**COPYING) as service:
        await until_copied(site.hub, CLICKS, *VALUES)
        await until_committed(site.hub, "g", {0: 15})
        second = await trio.to_thread.run_sync(lambda: take(bootstrap_of(site.hub), len(VALUES) - 15))
        assert [*first, *second] == VALUES
        await commit(site.east, "g", 16)
        await until_left_alone(
            service, {"group": "g", "topic": "clicks", "partition": 0, "reason": "moved on at the hub"}
        )
        assert await committed_offsets(site.hub, "g") == {0: len(VALUES)}


async def test_a_group_with_members_at_the_hub_is_not_touched(site: Site) -> None:
    await make(site.east)
    await publish(site.east, *VALUES)
    await commit(site.east, "g", 5)
    async with site.mirroring(**COPYING) as service:
        await until_committed(site.hub, "g", {0: 5})
        with joined(bootstrap_of(site.hub)) as consumer:
            consumer.subscribe(["clicks"])
            poll = trio.to_thread.run_sync
            with trio.fail_after(DEADLINE_S):
                while not consumer.assignment():
                    await poll(consumer.poll, 0.1)
            await commit(site.east, "g", 9)
            await until_left_alone(service, {"group": "g", "reason": "has members at the hub"})
            assert await committed_offsets(site.hub, "g") == {0: 5}
            await poll(consumer.close)
        await until_committed(site.hub, "g", {0: 9})
        await until_left_alone(service)


async def test_the_coordinator_of_the_hub_refuses_a_commit_after_a_member_joined(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror believes that the group is still empty."""

    async def describe_as_empty(_cluster: Cluster, _broker: Any, groups: Sequence[str], **_: float) -> dict[str, str]:
        return dict.fromkeys(groups, EMPTY)

    monkeypatch.setattr(offset_writer, "describe_states", describe_as_empty)
    await make(site.east)
    await publish(site.east, *VALUES)
    await commit(site.east, "g", 5)
    async with site.mirroring(**COPYING) as service:
        await until_committed(site.hub, "g", {0: 5})
        with joined(bootstrap_of(site.hub)) as consumer:
            consumer.subscribe(["clicks"])
            with trio.fail_after(DEADLINE_S):
                while not consumer.assignment():
                    await trio.to_thread.run_sync(consumer.poll, 0.1)
            await commit(site.east, "g", 9)
            await until_left_alone(service, {"group": "g", "reason": "has members at the hub"})
            assert groups_status(service)["error"] is None
            assert await committed_offsets(site.hub, "g") == {0: 5}
            await trio.to_thread.run_sync(consumer.close)


async def test_offsets_of_old_consumers_come_from_zookeeper(site: Site, zookeeper: str) -> None:
    await make(site.east, partitions=2)
    for partition in (0, 1):
        await publish(site.east, *VALUES[:10], partition=partition)
    await commit(site.east, "both", 8)
    connect = f"{zookeeper}/live"
    async with open_zookeeper(connect) as client:
        for path, data in {
            "old/offsets/clicks/0": b"4",
            "old/offsets/clicks/1": b"7",
            "old/offsets/other/0": b"7",
            "old/ids/old_host-1": b"{}",
            "both/offsets/clicks/0": b"2",
            "both/offsets/clicks/1": b"3",
            "odd/offsets/clicks/0": b"not a number",
            "odd/offsets/clicks/x": b"1",
            "old/offsets/clicks/00": b"1",
            f"{'odd' * 15_000}/offsets/clicks/0": b"1",
        }.items():
            await client.create(f"/consumers/{path}", data)
        sources = [
            {"name": "east", "bootstrap.servers": "given:1", "zookeeper.connect": connect},
            {"name": "west", "bootstrap.servers": "given:1"},
        ]
        async with site.mirroring(sources=sources, **COPYING) as service:
            await until_committed(site.hub, "old", {0: 4, 1: 7})
            await until_committed(site.hub, "both", {0: 8, 1: 3})
            await client.set("/consumers/old/offsets/clicks/0", b"6")
            await until_committed(site.hub, "old", {0: 6, 1: 7})
            await after_a_round(service)
            assert await committed_offsets(site.hub, "odd") == {}
            await until(lambda: groups_status(service)["error"] is None)


async def test_a_znode_that_the_mirror_may_not_read_costs_its_own_group_alone(site: Site, zookeeper: str) -> None:
    def hide(path: str) -> None:
        client: Any = KazooClient(zookeeper)
        client.start()
        client.add_auth("digest", "owner:password")
        security: Any = import_module("kazoo.security")
        client.set_acls(path, [security.make_digest_acl("owner", "password", all=True)])
        client.stop()
        client.close()

    await make(site.east)
    await publish(site.east, *VALUES[:10])
    for group in ("hidden", "new"):
        await commit(site.east, group, 8)
    sources = [
        {"name": "east", "bootstrap.servers": "given:1", "zookeeper.connect": zookeeper},
        {"name": "west", "bootstrap.servers": "given:1"},
    ]
    async with open_zookeeper(zookeeper) as client:
        for group in ("hidden", "old"):
            await client.create(f"/consumers/{group}/offsets/clicks/0", b"2")
        await trio.to_thread.run_sync(hide, "/consumers/hidden/offsets")
        async with site.mirroring(sources=sources, **COPYING) as service:
            for group, offset in {"old": 2, "new": 8, "hidden": 8}.items():
                await until_committed(site.hub, group, {0: offset})
            reason = groups_status(service)["error"]
            assert "/consumers/hidden/offsets: ZooKeeper's ACL of this znode refuses a client" in reason


async def test_zookeeper_does_not_speak_for_a_broker_that_is_away(
    site: Site, zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has committed to the broker since then."""

    async def fail(*_: Any, **__: Any) -> None:
        raise NetworkError("broker 1 is on strike")

    await make(site.east)
    await publish(site.east, *VALUES[:10])
    await commit(site.east, "both", 8)
    sources = [
        {"name": "east", "bootstrap.servers": "given:1", "zookeeper.connect": zookeeper},
        {"name": "west", "bootstrap.servers": "given:1"},
    ]
    async with open_zookeeper(zookeeper) as client:
        await client.create("/consumers/both/offsets/clicks/0", b"2")
        written: list[dict[int, int]] = []
        async with site.mirroring(sources=sources, **COPYING) as service:
            with monkeypatch.context() as patch:
                patch.setattr(offset_copier, "list_groups_of", fail)
                await until_copied(site.hub, CLICKS, *VALUES[:10])
                groups = service.sources["east"].groups
                assert groups is not None
                rounds = groups._rounds
                await until(lambda: groups._rounds > rounds + 2)
                assert groups_status(service)["error"] == "broker 1 is on strike"
                written.append(await committed_offsets(site.hub, "both"))
            await until_committed(site.hub, "both", {0: 8})
            assert written == [{}]


async def test_a_zookeeper_that_is_away_is_shown_and_the_brokers_groups_are_copied(site: Site) -> None:
    await make(site.east)
    await publish(site.east, *VALUES[:3])
    await commit(site.east, "g", 2)
    sources = [
        {"name": "east", "bootstrap.servers": "given:1", "zookeeper.connect": "127.0.0.1:1/live"},
        {"name": "west", "bootstrap.servers": "given:1"},
    ]
    async with site.mirroring(sources=sources, **COPYING) as service:
        await until_committed(site.hub, "g", {0: 2})
        await until(lambda: "no ZooKeeper answers at 127.0.0.1:1" in (groups_status(service)["error"] or ""))


async def test_a_mistyped_chroot_is_not_created(site: Site, zookeeper: str) -> None:
    servers, _, chroot = zookeeper.partition("/")
    sources = [
        {"name": "east", "bootstrap.servers": "given:1", "zookeeper.connect": zookeeper},
        {"name": "west", "bootstrap.servers": "given:1"},
    ]
    async with site.mirroring(sources=sources, **COPYING) as service:
        await until(lambda: groups_status(service)["age_seconds"] is not None)
    async with open_zookeeper(servers) as client:
        assert await client.exists(f"/{chroot}") is None
