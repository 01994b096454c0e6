"""A mirror between real brokers in this process: what it copies, what it refuses and says, how it goes on."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.topics import NewTopic, create_partitions, create_topics, delete_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.batches import DeliveryError
from pipeline.client.producer.producer import open_producer
from pipeline.mirror.service import MirrorService
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.brokers import clock, serving_cluster
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    NOBODY,
    Site,
    batch_at,
    make,
    publish,
    put,
    read,
    reason_of,
    until,
    until_copied,
    until_said,
)


async def test_two_sources_lie_side_by_side_and_growth_appends(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"e0", b"e1")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"e0", b"e1")
        await make(site.west)
        await publish(site.west, b"w0")
        await until_copied(site.hub, TopicPartition("clicks", 1), b"w0")
        await create_partitions(site.east, {"clicks": 2})
        await site.east.refresh()
        await publish(site.east, b"new", partition=1)
        await until_copied(site.hub, TopicPartition("clicks", 2), b"new")


async def test_a_mirror_goes_on_where_another_one_ended(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a", b"b")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a", b"b")
    await publish(site.east, b"c")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a", b"b", b"c")


async def test_two_mirrors_at_once_double_nothing(site: Site) -> None:
    await make(site.east, partitions=3)
    values = [b"%d" % number for number in range(50)]
    async with site.mirroring(), site.mirroring():
        async with trio.open_nursery() as nursery:
            for partition in range(3):
                nursery.start_soon(partial(publish, site.east, *values, partition=partition))
        for partition in range(3):
            await until_copied(site.hub, TopicPartition("clicks", partition), *values)


async def test_a_batch_that_another_mirror_appended_first_is_left_to_it(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring() as service:
        await until_copied(site.hub, CLICKS, b"a")
        await put(site.hub, batch_at(1, b"b"))
        await publish(site.east, b"b", b"c")
        await until_copied(site.hub, CLICKS, b"a", b"b", b"c")
        with trio.fail_after(DEADLINE_S):
            while reason_of(service) is not None:
                await trio.sleep(0.01)
        assert site.failures() == 0


async def test_a_replica_that_ends_within_a_batch_of_its_source_rests_with_the_reason(site: Site) -> None:
    await make(site.east)
    await make(site.hub, mirror_source="pipeline")
    await put(site.hub, batch_at(0, b"a"))
    async with open_producer(site.east, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
        for value in (b"a", b"b", b"c"):
            await producer.send("clicks", value)
    async with site.mirroring() as service:
        await until_said(service, "hold different batches at offset 0")
        await stays_said(site, service)
    assert await read(site.hub, CLICKS) == [(0, b"a")]


async def test_a_replica_that_is_past_its_source_rests_with_the_reason_and_others_go_on(site: Site) -> None:
    await make(site.east, partitions=2)
    await make(site.hub, partitions=2, mirror_source="pipeline")
    await put(site.hub, batch_at(50, b"from a former life"))
    await publish(site.east, b"a")
    async with site.mirroring() as service:
        await until_said(service, "outside of the log")
        await publish(site.east, b"b", partition=1)
        await until_copied(site.hub, TopicPartition("clicks", 1), b"b")
        await stays_said(site, service)
        assert reason_of(service, partition=1) is None


async def test_records_deleted_before_they_were_copied_stop_their_partition_alone(site: Any) -> None:
    await make(site.east, partitions=2)
    await publish(site.east, b"copied")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"copied")
    await publish(site.east, b"lost", b"kept")
    await delete_records(site.east, {CLICKS: 2}, timeout_s=DEADLINE_S)
    async with site.mirroring() as service:
        await until_said(service, "offset 1 is outside of the log, which begins at 2")
        await publish(site.east, b"b", partition=1)
        await until_copied(site.hub, TopicPartition("clicks", 1), b"b")
        await stays_said(site, service)
    assert await read(site.hub, CLICKS) == [(0, b"copied")]


async def test_a_topic_created_again_while_no_mirror_ran_is_refused(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"old")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"old")
    await delete_topics(site.east, ["clicks"])
    await make(site.east)
    await publish(site.east, b"new", b"newer")
    async with site.mirroring() as service:
        await until_said(service, "created again")
        await publish(site.east, b"newest")
        await create_partitions(site.east, {"clicks": 2})
        await publish(site.east, b"partition of its own", partition=1)
        await until_copied(site.hub, TopicPartition("clicks", 1), b"partition of its own")
        await until_said(service, "created again")
    assert await read(site.hub, CLICKS) == [(0, b"old")]


async def test_a_topic_created_again_under_a_running_mirror_is_never_mixed_with_the_old_one(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"old")
    async with site.mirroring(refresh_interval_ms=60_000) as service:
        await until_copied(site.hub, CLICKS, b"old")
        await delete_topics(site.east, ["clicks"])
        await make(site.east)
        await publish(site.east, b"new", b"newer")
        await until_said(service, "created again")
        await stays_said(site, service)
    assert await read(site.hub, CLICKS) == [(0, b"old")]


async def test_a_replica_that_was_made_anew_is_copied_from_the_start(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"old")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"old")
        await delete_topics(site.hub, ["clicks"])
        await create_topics(site.hub, [NewTopic(name="clicks", partitions=1, configs={"mirror.source": "pipeline"})])
        await publish(site.east, b"new")
        await until_copied(site.hub, CLICKS, b"old", b"new")
    assert await read(site.hub, CLICKS) == [(0, b"old"), (1, b"new")]


async def test_a_topic_of_the_hub_itself_is_not_written_to(site: Site) -> None:
    await make(site.hub, partitions=2)
    await make(site.east, partitions=2)
    await publish(site.hub, b"own")
    for partition in range(2):
        await publish(site.east, b"a", b"b", partition=partition)
    async with site.mirroring() as service:
        await until_said(service, "no mirror.source")
        await until_said(service, "no mirror.source", partition=1)
    assert await read(site.hub, CLICKS) == [(0, b"own")]
    assert await read(site.hub, TopicPartition("clicks", 1)) == []


async def test_a_hub_that_cannot_keep_offsets_gets_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_features(_broker: BrokerId) -> dict[str, tuple[int, int]]:
        return {}

    monkeypatch.setattr(site.hub, "features", no_features)
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring() as service:
        await until_said(service, "cannot append batches at given offsets")
        await stays_said(site, service)
    assert await read(site.hub, CLICKS) == []


async def test_replicas_are_read_only_for_others(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
        with pytest.raises(DeliveryError) as caught:
            await publish(site.hub, b"intruder")
    assert isinstance(caught.value.last_error, KafkaError)
    assert caught.value.last_error.code is ErrorCode.POLICY_VIOLATION
    assert await read(site.hub, CLICKS) == [(0, b"a")]


def source_errors(service: MirrorService) -> dict[str, Any]:
    return {one["name"]: one["error"] for one in service.status()["sources"]}


async def test_a_source_that_is_away_is_said_and_does_not_hold_up_the_others(site: Site) -> None:
    async with open_cluster(NOBODY) as away:
        site.east = away
        await make(site.west)
        async with site.mirroring(produce_timeout_ms=60_000) as service:
            assert service.status()["error"] == "not reached yet"
            assert source_errors(service) == {"east": "not reached yet", "west": "not reached yet"}
            await publish(site.west, b"w")
            await until_copied(site.hub, CLICKS, b"w")
            await until(lambda: source_errors(service)["west"] is None)
            await until(lambda: "no broker" in source_errors(service)["east"], deadline_s=50)
            assert service.status()["error"] is None
            assert [site.is_up(name) for name in ("east", "west")] == [0, 1]


async def test_a_hub_that_is_away_from_the_start_is_soon_said(site: Site) -> None:
    async with open_cluster(NOBODY) as away:
        site.hub = away
        async with site.mirroring(produce_timeout_ms=60_000) as service:
            await until(lambda: "no broker" in service.status()["error"], deadline_s=50)
            assert source_errors(service) == {"east": "not reached yet", "west": "not reached yet"}


@pytest.mark.long
async def test_partitions_of_other_hub_brokers_are_copied_while_one_is_away(site: Site, tmp_path: Path) -> None:
    zookeeper = MemoryZooKeeper()
    async with serving_cluster(tmp_path / "one", zookeeper=zookeeper) as hub:
        site.hub = hub
        async with site.mirroring(produce_timeout_ms=5_000) as service:
            await until(lambda: service.status()["error"] is None)
            async with serving_cluster(tmp_path / "two", zookeeper=zookeeper, broker_id=2):
                alone = NewTopic(name="clicks", partitions=2, replication_factor=1, configs={"mirror.source": "east"})
                await create_topics(hub, [alone])
                await make(site.east, partitions=2)
                for partition in (0, 1):
                    await publish(site.east, b"a", partition=partition)
                    await until_copied(hub, TopicPartition("clicks", partition), b"a")
                leaders = {number: one.leader for number, one in hub.view.topics["clicks"].partitions.items()}
            (here,) = [number for number, leader in leaders.items() if leader == 1]
            await publish(site.east, b"b", partition=1 - here)
            await until(lambda: reason_of(service, partition=1 - here) is not None)
            values = [b"%d" % number for number in range(5)]
            for count in range(5):
                await publish(site.east, values[count], partition=here)
                with trio.fail_after(60):
                    await until_copied(hub, TopicPartition("clicks", here), b"a", *values[: count + 1])
            assert reason_of(service, partition=here) is None


async def test_a_topic_that_is_gone_from_its_source_is_shown_also_after_a_restart(site: Site) -> None:
    await make(site.east, partitions=2)
    await publish(site.east, b"a")
    async with site.mirroring() as service:
        await until_copied(site.hub, CLICKS, b"a")
        await delete_topics(site.east, ["clicks"])
        await until_said(service, "no longer exists in east")
        assert [line["lag"] for line in service.status()["sources"][0]["partitions"]] == [None, None]
    async with site.mirroring() as service:
        await until_said(service, "no longer exists in east", partition=1)
        await make(site.east)
        await until_said(service, "created again")
        await until_said(service, "no longer exists in east", partition=1)
    assert await read(site.hub, CLICKS) == [(0, b"a")]


async def test_a_partition_that_was_not_told_of_for_a_while_is_copied_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    fetch, is_hidden = site.east.fetch_all_topics, False

    async def fetch_or_hide(**settings: Any) -> Any:
        view = await fetch(**settings)
        return replace(view, topics={}) if is_hidden else view

    monkeypatch.setattr(site.east, "fetch_all_topics", fetch_or_hide)
    async with site.mirroring() as service:
        await until_copied(site.hub, CLICKS, b"a")
        is_hidden = True
        await until_said(service, "no longer exists in east")
        await publish(site.east, b"b")
        is_hidden = False
        await until_copied(site.hub, CLICKS, b"a", b"b")
        await until(lambda: reason_of(service) is None)


async def test_a_topic_that_cannot_be_described_is_not_gone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    fetch = site.east.fetch_all_topics
    refreshes = 0
    is_failing = False

    async def fetch_or_fail(**settings: Any) -> Any:
        nonlocal refreshes
        view = await fetch(**settings)
        refreshes += 1
        return replace(view, topics={}, errors={"clicks": ErrorCode.LEADER_NOT_AVAILABLE}) if is_failing else view

    monkeypatch.setattr(site.east, "fetch_all_topics", fetch_or_fail)
    async with site.mirroring() as service:
        await until_copied(site.hub, CLICKS, b"a")
        is_failing, before = True, refreshes
        await until(lambda: refreshes > before + 2)
        assert reason_of(service) is None


async def test_a_replica_names_its_sources_to_those_it_refuses(site: Site) -> None:
    await make(site.east)
    await make(site.west)
    async with site.mirroring(refresh_interval_ms=60_000) as service:
        await until(lambda: list(source_errors(service).values()) == [None, None])
        with pytest.raises(DeliveryError, match="read-only mirror of east,west;"):
            await publish(site.hub, b"intruder")


async def stays_said(site: Site, service: MirrorService) -> None:
    """Through three more attempts."""
    before = site.failures()
    with trio.fail_after(DEADLINE_S):
        while site.failures() < before + 3:
            assert reason_of(service) is not None
            await trio.sleep(0.001)
