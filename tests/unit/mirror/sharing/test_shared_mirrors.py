"""Mirrors that share the partitions of two live clusters, all in this process: who copies what, and who is refused."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import delete_topics
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.coordination.znodes import copier_path
from pipeline.errors import PipelineError
from pipeline.mirror.copying.kept_offsets import KeptOffsets
from pipeline.mirror.service import MirrorService
from pipeline.mirror.sharing.assignment import Holding
from pipeline.model import TopicPartition
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper
from tests.support.brokers import clock, serving_cluster
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    Site,
    make,
    mirror_settings,
    mirroring_of,
    publish,
    read,
    token_of,
    until,
    until_copied,
)

PARTITIONS = 4
SETTINGS: dict[str, Any] = {"zookeeper.session.timeout.ms": 1000}
WELL = {"caught_up", "copying"}


def states(service: MirrorService, source: str = "east") -> dict[int, str]:
    found = next(one for one in service.status()["sources"] if one["name"] == source)
    return {each["partition"]: each["state"] for each in found["partitions"]}


def owned(service: MirrorService) -> set[int]:
    return {number for number, state in states(service).items() if state in WELL}


async def until_shared(*services: MirrorService) -> None:
    """Wait until each partition is copied by one of these, and all of them know it."""

    def is_shared() -> bool:
        counts = Counter(state for service in services for state in states(service).values())
        held = [number for service in services for number in owned(service)]
        elsewhere = PARTITIONS * (len(services) - 1)
        return sorted(held) == list(range(PARTITIONS)) and counts["elsewhere"] == elsewhere

    await until(is_shared)


async def publish_all(site: Site, value: bytes) -> None:
    for number in range(PARTITIONS):
        await publish(site.east, value, partition=number)


async def until_all_copied(site: Site, *values: bytes) -> None:
    for number in range(PARTITIONS):
        await until_copied(site.hub, TopicPartition("clicks", number), *values)


async def test_partitions_are_shared_and_taken_over(site: Site) -> None:
    zookeeper = MemoryZooKeeper()
    await make(site.east, partitions=PARTITIONS)
    async with zookeeper.open() as client, site.mirroring(client, **SETTINGS) as first:
        async with zookeeper.open() as other, site.mirroring(other, **SETTINGS) as second:
            await until_shared(first, second)
            assert len(owned(first)) == len(owned(second)) == 2
            await publish_all(site, b"a")
            await until_all_copied(site, b"a")
            group = second.status()["group"]
            assert group["unowned"] == 0
            assert [each["partitions"] for each in group["members"]] == [2, 2]
            assert group["leader"] in {each["member"] for each in group["members"]}
            unknown = [source["unknown_lags"] for source in second.status()["sources"]]
            assert unknown == [0, 0]
        await until_shared(first)
        await publish_all(site, b"b")
        await until_all_copied(site, b"a", b"b")


@pytest.mark.long
async def test_a_member_that_others_hold_for_dead_is_refused_and_doubles_nothing(site: Site) -> None:
    """Its session has ended, and it does not know it: a paused process, or one that is cut off from ZooKeeper."""
    zookeeper = MemoryZooKeeper()
    await make(site.east, partitions=PARTITIONS)
    async with zookeeper.open() as client, site.mirroring(client, **SETTINGS) as first:
        async with zookeeper.open() as other, site.mirroring(other, **SETTINGS) as second:
            await until_shared(first, second)
            assert isinstance(other, MemoryClient)
            taken_over = owned(second)
            other.history.suspended()
            zookeeper.znodes.remove_ephemerals(other.session)
            await until(lambda: owned(first) == set(range(PARTITIONS)))
            await publish_all(site, b"a")
            await until_all_copied(site, b"a")
            await until(lambda: {states(second)[number] for number in taken_over} == {"waiting"})
            source = next(one for one in second.status()["sources"] if one["name"] == "east")
            reasons = {each["error"] for each in source["partitions"] if each["partition"] in taken_over}
            assert all("has a newer copier" in (reason or "") for reason in reasons)
            await publish_all(site, b"b")
            await until_all_copied(site, b"a", b"b")
            other.become_connected(zookeeper.new_session())
            await until_shared(first, second)
        await publish_all(site, b"c")
        await until_all_copied(site, b"a", b"b", b"c")


async def test_a_partition_without_a_live_member_is_shown(site: Site) -> None:
    zookeeper = MemoryZooKeeper()
    await make(site.east, partitions=PARTITIONS)
    async with zookeeper.open() as client, site.mirroring(client, **SETTINGS) as first:
        await until_shared(first)
    async with zookeeper.open() as client:
        assert isinstance(client, MemoryClient)
        zookeeper.stop()
        async with site.mirroring(client, **SETTINGS) as alone:
            await until(lambda: set(states(alone).values()) == {"unowned"})
            group = alone.status()["group"]
            assert (group["is_registered"], group["unowned"]) == (False, PARTITIONS + 2)
            zookeeper.start()
            await until_shared(alone)


@pytest.mark.long
async def test_a_mirror_without_the_group_is_refused_in_words_and_one_member_goes_on(site: Site) -> None:
    zookeeper = MemoryZooKeeper()
    await make(site.east)
    async with zookeeper.open() as client, site.mirroring(client, **SETTINGS):
        await publish(site.east, b"a")
        await until_copied(site.hub, CLICKS, b"a")
    await publish(site.east, b"b")
    async with site.mirroring() as outsider:
        await until(lambda: states(outsider) == {0: "halted"})
        found = outsider.status()["sources"][0]["partitions"][0]
        assert "Give this mirror their zookeeper.connect and mirror.group" in found["error"]
        assert "give a mirror without a group the zookeeper.connect" in found["advice"]
    assert await read(site.hub, CLICKS) == [(0, b"a")]
    async with zookeeper.open() as client, site.mirroring(client, **SETTINGS):
        await until_copied(site.hub, CLICKS, b"a", b"b")


async def test_a_group_takes_over_from_a_mirror_that_runs_alone(site: Site) -> None:
    zookeeper = MemoryZooKeeper()
    await make(site.east)
    async with site.mirroring() as before:
        await publish(site.east, b"a")
        await until_copied(site.hub, CLICKS, b"a")
        async with zookeeper.open() as client, site.mirroring(client, **SETTINGS):
            with trio.fail_after(DEADLINE_S):
                while await client.exists("/mirrors/mirror/assignment") is None:
                    await trio.sleep(0.01)
            await publish(site.east, b"b")
            await until_copied(site.hub, CLICKS, b"a", b"b")
            await publish(site.east, b"c")
            await until_copied(site.hub, CLICKS, b"a", b"b", b"c")
            last = before.status()["sources"][0]["partitions"][0]["last_error"]
            assert "belongs to a group of mirrors" in last["error"]


@pytest.mark.long
async def test_the_end_of_a_recreated_topic_is_shown_by_the_holder_of_each_partition_alone(site: Site) -> None:
    zookeeper = MemoryZooKeeper()
    await make(site.east, partitions=PARTITIONS)
    async with (
        zookeeper.open() as client,
        site.mirroring(client, **SETTINGS) as first,
        zookeeper.open() as other,
        site.mirroring(other, **SETTINGS) as second,
    ):
        await until_shared(first, second)
        held = [owned(first), owned(second)]
        await publish_all(site, b"a")
        await until_all_copied(site, b"a")
        await delete_topics(site.east, ["clicks"])
        await make(site.east, partitions=PARTITIONS)

        def halted(service: MirrorService) -> set[int]:
            return {number for number, state in states(service).items() if state == "halted"}

        await until(lambda: [halted(first), halted(second)] == held)
        counts = [Counter(states(service).values()) for service in (first, second)]
        assert [count["elsewhere"] for count in counts] == [PARTITIONS - len(each) for each in held]


async def test_a_recreated_topic_ends_with_the_copier_epoch_that_its_holder_has_then(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    zookeeper = MemoryZooKeeper()
    await make(site.east)
    async with zookeeper.open() as client, site.mirroring(client, **SETTINGS) as service:
        await publish(site.east, b"a")
        await until_copied(site.hub, CLICKS, b"a")
        with monkeypatch.context() as patched:
            failed = trio.Event()

            async def fail(*_: Any) -> None:
                failed.set()
                raise PipelineError("the hub is away")

            patched.setattr(KeptOffsets, "locate", fail)
            await delete_topics(site.east, ["clicks"])
            await make(site.east)
            with trio.fail_after(DEADLINE_S):
                await failed.wait()
            copies = service.sources["east"].copies
            unit = copies.unit_of(CLICKS)
            epoch = copies.share.epoch_of(unit)
            assert epoch is not None
            claimed = await raw_produce(
                site.hub,
                {CLICKS: b""},
                keep_offsets=True,
                timeout_s=DEADLINE_S,
                sources={CLICKS: await token_of(site.hub, CLICKS)},
                copier_epochs={CLICKS: epoch + 1},
            )
            assert claimed[CLICKS].error is None  # another member had the partition in between
            member = copies.share.assigned[unit].member
            newer = {**copies.share.assigned, unit: Holding(member, epoch + 2)}
            copies.take_share(replace(copies.share, assigned=newer))

        def halt() -> dict[str, Any]:
            return service.status()["sources"][0]["partitions"][0]["halt"] or {}

        await until(lambda: halt() != {})
        assert (halt()["reason"], halt()["first"]) == ("recreated", 1)


@pytest.mark.long
async def test_a_partition_whose_holder_does_not_select_it_is_shown_as_unowned(site: Site) -> None:
    zookeeper = MemoryZooKeeper()
    await make(site.east, "views", PARTITIONS)
    both = mirror_settings("east", "west", topics=["clicks", "views"], **SETTINGS)
    one = mirror_settings("east", "west", topics=["clicks"], **SETTINGS)
    async with (
        zookeeper.open() as client,
        site.mirroring(client, **{**SETTINGS, "topics": ["clicks", "views"]}) as first,
    ):
        await until_shared(first)
        async with zookeeper.open() as other, site.mirroring(other, **{**SETTINGS, "topics": ["clicks"]}) as second:
            await until(lambda: "unowned" in states(first).values())
            group = first.status()["group"]
            assert group["unowned"] > 0
            alike = {each["member"]: each["selects_the_same"] for each in group["members"]}
            assert alike == {group["member"]: True, second.status()["group"]["member"]: False}
            await second.settings.apply(both, second.status()["settings"]["version"])
            await until_shared(first, second)
            await until(lambda: first.status()["group"]["unowned"] == 0)
            await second.settings.apply(one, second.status()["settings"]["version"])
            await until(lambda: "unowned" in states(first).values())


async def test_copiers_that_the_hub_holds_for_old_get_newer_epochs(tmp_path: Path) -> None:
    """An earlier leader's clock was a year ahead, and the group's znodes were lost or went back in time since."""
    zookeeper = MemoryZooKeeper()
    async with (
        serving_cluster(tmp_path / "east") as east,
        serving_cluster(tmp_path / "hub", zookeeper=zookeeper) as hub,
        zookeeper.open() as client,
    ):
        await make(east, partitions=PARTITIONS)
        settings = {**SETTINGS, "zookeeper.connect": "given:1", "mirror.rebalance.interval.ms": 200}
        async with mirroring_of(hub, None, settings, None, client, east=east) as service:
            await until_shared(service)
            ahead = TopicPartition("clicks", 1)
            year_ahead = clock() + 365 * 86_400_000
            claimed = await raw_produce(
                hub,
                {ahead: b""},
                keep_offsets=True,
                timeout_s=DEADLINE_S,
                sources={ahead: await token_of(hub, ahead)},
                copier_epochs={ahead: year_ahead},
            )
            assert claimed[ahead].error is None
            before = await client.get(copier_path("clicks", 0))
            for number in range(PARTITIONS):
                await publish(east, b"a", partition=number)
            for number in range(PARTITIONS):
                await until_copied(hub, TopicPartition("clicks", number), b"a")
            await until_shared(service)
            assert await client.get(copier_path("clicks", 0)) == before
