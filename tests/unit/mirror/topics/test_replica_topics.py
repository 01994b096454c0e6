"""Replica topics: settings that follow those of the sources, and provenance that brokers of the hub check."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
import structlog.testing
import trio

from pipeline.client.admin import resource_configs, topics
from pipeline.client.admin.resource_configs import ConfigEntry, ConfigResource, alter_configs
from pipeline.client.admin.topics import NewTopic, create_partitions, delete_topics, list_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.mirror.failover.promotion import Promoter
from pipeline.mirror.journals.table import TABLE_TOPIC, Proposal, SourcePartition
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.mirror.service import MirrorService
from pipeline.mirror.topics import replica_topics
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.messages.describe_configs import ConfigSource, ResourceType
from pipeline.provenance import MIRROR_PARTITIONS, Provenance
from tests.support.brokers import clock
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    NOBODY,
    Site,
    make,
    publish,
    read,
    settings_of,
    until,
    until_copied,
    until_said,
)

WEST_CLICKS = TopicPartition("clicks", 1)


async def change(cluster: Cluster, topic: str = "clicks", **settings: str | None) -> None:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    await alter_configs(cluster, {ConfigResource(ResourceType.TOPIC, topic): named}, timeout_s=DEADLINE_S)


async def followed(hub: Cluster, topic: str = "clicks") -> dict[str, str]:
    settings = await settings_of(hub, topic)
    return {name: value for name, value in settings.items() if not name.startswith("mirror.")}


async def until_followed(hub: Cluster, **settings: str) -> None:
    expected = {name.replace("_", "."): value for name, value in settings.items()}
    found: dict[str, str] = {}
    with trio.move_on_after(DEADLINE_S):
        while "clicks" not in (await hub.fetch_all_topics()).topics:
            await trio.sleep(0.01)
        while (found := await followed(hub)) != expected:
            await trio.sleep(0.01)
    assert found == expected


def source_error(service: MirrorService, number: int = 0) -> str:
    return service.status()["sources"][number]["error"] or ""


def topic_problems(service: MirrorService) -> str:
    return "; ".join(problem for topic in service.status()["topics"] for problem in topic["problems"])


async def test_a_replica_is_created_with_the_settings_of_its_source(site: Site) -> None:
    await make(site.east, cleanup_policy="compact", retention_ms="-1", segment_ms="3600000", min_insync_replicas="1")
    async with site.mirroring():
        with trio.fail_after(DEADLINE_S):
            while "clicks" not in (await site.hub.fetch_all_topics()).topics:
                await trio.sleep(0.001)
        settings = await followed(site.hub)
    assert settings == {"cleanup.policy": "compact", "retention.ms": "-1", "segment.ms": "3600000"}


async def test_a_replica_that_exists_gets_the_settings_before_the_first_record(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(site.east, retention_ms="-1")
    await make(site.hub, mirror_source="east", retention_ms="1000", segment_bytes="1048576")
    await publish(site.east, b"a")
    seen: list[dict[str, str]] = []
    produce = raw_produce

    async def note(cluster: Cluster, *args: Any, **settings: Any) -> Any:
        seen.append(await followed(cluster))
        return await produce(cluster, *args, **settings)

    monkeypatch.setattr("pipeline.mirror.copying.kept_offsets.raw_produce", note)
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
    assert seen[0] == {"retention.ms": "-1"}


@pytest.mark.long
async def test_changes_at_the_source_reach_the_replica_in_seconds(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring(refresh_interval_ms=600_000):
        await until_copied(site.hub, CLICKS, b"a")
        assert await followed(site.hub) == {}
        await change(site.east, retention_ms="7200000", cleanup_policy="compact,delete")
        await until_followed(site.hub, retention_ms="7200000", cleanup_policy="compact,delete")
        await change(site.east, retention_ms="-1", cleanup_policy=None, visibility="flushed")
        await until_followed(site.hub, retention_ms="-1")
        await change(site.east, retention_ms=None)
        await until_followed(site.hub)


async def test_changes_while_no_mirror_ran_are_followed_at_its_start(site: Site) -> None:
    await make(site.east, retention_ms="1000", segment_ms="3600000")
    async with site.mirroring():
        await until_followed(site.hub, retention_ms="1000", segment_ms="3600000")
    await change(site.east, retention_ms="2000", segment_ms=None)
    async with site.mirroring():
        await until_followed(site.hub, retention_ms="2000")


@pytest.mark.long
async def test_settings_of_a_recreated_topic_are_not_for_the_old_copy(site: Site) -> None:
    await make(site.east, retention_ms="-1")
    await publish(site.east, b"old")
    async with site.mirroring(topic_settings_interval_ms=100) as service:
        await until_copied(site.hub, CLICKS, b"old")
        await until_followed(site.hub, retention_ms="-1")
        await delete_topics(site.east, ["clicks"])
        await make(site.east, retention_ms="1000")
        await until_said(service, "is the copy of the old topic")
        await create_partitions(site.east, {"clicks": 2})
        await publish(site.east, b"new", partition=1)
        await until_copied(site.hub, WEST_CLICKS, b"new")
        assert await followed(site.hub) == {"retention.ms": "-1"}


async def test_a_promoted_replica_keeps_its_settings(site: Site) -> None:
    await make(site.east, retention_ms="1000")
    await publish(site.east, b"a")
    async with site.mirroring(topic_settings_interval_ms=100) as service:
        await until_copied(site.hub, CLICKS, b"a")
        await Promoter(site.hub, clock=clock, timeout_s=DEADLINE_S).promote("clicks")
        await change(site.east, retention_ms="2000")
        await create_partitions(site.east, {"clicks": 2})
        await until_said(service, "promoted", partition=1)
    assert (await settings_of(site.hub))["retention.ms"] == "1000"


async def test_an_empty_list_follows_nothing(site: Site) -> None:
    await make(site.east, retention_ms="1000")
    await publish(site.east, b"a")
    async with site.mirroring(topic_settings=[]):
        await until_copied(site.hub, CLICKS, b"a")
    assert await followed(site.hub) == {}


async def test_replicas_that_have_what_they_should_have_cost_the_hub_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await make(site.east, topic=f"clicks{number}", retention_ms="1000")
    reads = 0
    describe = resource_configs.describe_many_topics

    async def note(cluster: Cluster, *args: Any, **settings: Any) -> Any:
        nonlocal reads
        reads += 1
        return await describe(cluster, *args, **settings)

    asked: list[str] = []
    ask = site.hub.request_any

    async def request(message: Any, **settings: Any) -> Any:
        asked.append(type(message).__name__)
        return await ask(message, **settings)

    async with site.mirroring(topic_settings_interval_ms=100, refresh_interval_ms=60_000) as service:
        await until(lambda: len(service.status()["sources"][0]["partitions"]) == 3)
        await until(lambda: all(line["lag"] == 0 for line in service.status()["sources"][0]["partitions"]))
        monkeypatch.setattr("pipeline.mirror.topics.source_topics.describe_many_topics", note)
        monkeypatch.setattr(site.hub, "request_any", request)
        await until(lambda: reads > 10)
    assert not {name for name in asked if "Configs" in name}


@contextmanager
def told_by_sources(monkeypatch: pytest.MonkeyPatch, topic: str | None = None, **values: str) -> Iterator[None]:
    """As if topics of the sources, or this one, had these settings, dots as underscores."""
    describe = resource_configs.describe_many_topics
    named = {name.replace("_", "."): value for name, value in values.items()}
    added = {
        name: ConfigEntry(value=value, source=ConfigSource.TOPIC, is_read_only=False, documentation=None)
        for name, value in named.items()
    }

    async def add(*args: Any, **settings: Any) -> Any:
        found: dict[str, Any] = dict(await describe(*args, **settings))
        return {name: entries | added if topic in {None, name} else entries for name, entries in found.items()}

    with monkeypatch.context() as patched:
        patched.setattr("pipeline.mirror.topics.source_topics.describe_many_topics", add)
        yield


@contextmanager
def created_together(monkeypatch: pytest.MonkeyPatch, most_partitions: int) -> Iterator[list[list[str]]]:
    """Replicas of each request that creates some, if a request has no more partitions."""
    found: list[list[str]] = []
    create = topics.create_topics

    async def note(cluster: Cluster, new: Sequence[NewTopic], **settings: Any) -> None:
        found.append([topic.name for topic in new])
        await create(cluster, new, **settings)

    with monkeypatch.context() as patched:
        patched.setattr("pipeline.mirror.topics.replica_topics.create_topics", note)
        patched.setattr("pipeline.mirror.topics.replica_topics.MAX_CREATED_PARTITIONS", most_partitions)
        yield found


async def copied_partitions(service: MirrorService, count: int) -> None:
    def is_copied() -> bool:
        lines = service.status()["sources"][0]["partitions"]
        return len(lines) == count and all(line["lag"] == 0 for line in lines)

    await until(is_copied)


async def test_many_replicas_are_created_in_few_requests(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await make(site.east, topic=f"clicks{number}", partitions=3, retention_ms=f"{number + 1}000")
        await publish(site.east, b"a", topic=f"clicks{number}", partition=2)
    await make(site.hub, topic="clicks3", partitions=3, mirror_source="east")
    with created_together(monkeypatch, 7) as requests:
        async with site.mirroring() as service:
            await copied_partitions(service, 15)
    assert requests == [["clicks0", "clicks1"], ["clicks2"], ["clicks4"]]
    for number in range(5):
        assert (await followed(site.hub, f"clicks{number}"))["retention.ms"] == f"{number + 1}000"
        provenance = Provenance.parse((await settings_of(site.hub, f"clicks{number}"))[MIRROR_PARTITIONS])
        origins = [provenance.origin_of(partition) for partition in range(3)]
        assert [origin and origin.topic for origin in origins] == [f"clicks{number}"] * 3


async def test_a_replica_that_the_hub_refuses_holds_up_no_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        await make(site.east, topic=f"clicks{number}")
        await publish(site.east, b"a", topic=f"clicks{number}")
    with (
        told_by_sources(monkeypatch, topic="clicks1", cleanup_policy="archive"),
        created_together(monkeypatch, 7) as requests,
    ):
        async with site.mirroring() as service:
            await until(lambda: "replica clicks1: INVALID_CONFIG" in source_error(service))
            await until_copied(site.hub, TopicPartition("clicks0", 0), b"a")
            await until_copied(site.hub, TopicPartition("clicks2", 0), b"a")
    assert requests[0] == ["clicks0", "clicks1", "clicks2"]
    assert "clicks1" not in await list_topics(site.hub)


@pytest.mark.long
@pytest.mark.parametrize("exists", [False, True])
async def test_a_setting_that_the_hub_refuses_is_shown_and_stops_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    await make(site.east, retention_ms="5000")
    await publish(site.east, b"a")
    if exists:
        await make(site.hub, mirror_source="east")
    with told_by_sources(monkeypatch, preallocate="true", segment_bytes="-7"):
        async with site.mirroring(topic_settings=["preallocate", "segment.bytes", "retention.ms"]) as service:
            await until_copied(site.hub, CLICKS, b"a")
            await until_followed(site.hub, retention_ms="5000")
            await until(lambda: "preallocate=true: " in topic_problems(service))
            assert "segment.bytes=-7: " in topic_problems(service)


async def test_a_replica_whose_retention_would_be_refused_is_not_created(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring(topic_settings_interval_ms=100) as service:
        await until_copied(site.hub, CLICKS, b"a")
        with told_by_sources(monkeypatch, cleanup_policy="archive"):
            await make(site.east, topic="clicks.archived")
            await until(lambda: "replica clicks.archived: INVALID_CONFIG" in source_error(service))
            await publish(site.east, b"b")
            await until_copied(site.hub, CLICKS, b"a", b"b")
        assert "clicks.archived" not in (await site.hub.fetch_all_topics()).topics
        await until(lambda: source_error(service) == "")
    assert "clicks.archived" in (await site.hub.fetch_all_topics()).topics


async def test_a_replica_of_two_sources_keeps_what_either_keeps(site: Site) -> None:
    await make(site.east, retention_ms="1000", cleanup_policy="compact")
    await make(site.west, retention_ms="2000", cleanup_policy="compact,delete")
    async with site.mirroring(topic_settings_interval_ms=100) as service:
        await until_followed(site.hub, retention_ms="2000", cleanup_policy="compact")
        await until(lambda: "retention.ms is 1000 in east, 2000 in west" in topic_problems(service))
        await change(site.west, cleanup_policy="delete")
        await until_followed(site.hub, retention_ms="-1", retention_bytes="-1", cleanup_policy="delete")
        await change(site.east, cleanup_policy="delete")
        await until_followed(site.hub, retention_ms="2000", cleanup_policy="delete")
        assert "cleanup.policy" not in topic_problems(service)


async def test_a_source_that_is_away_at_the_start_keeps_its_share(site: Site) -> None:
    await make(site.east, retention_ms="9000", segment_ms="3600000")
    await make(site.west, retention_ms="2000", segment_ms="7200000")
    for cluster in (site.east, site.west):
        await publish(cluster, b"a")
    async with site.mirroring():
        await until_followed(site.hub, retention_ms="9000", segment_ms="3600000")
        await until_copied(site.hub, CLICKS, b"a")
        await until_copied(site.hub, WEST_CLICKS, b"a")
    async with open_cluster(NOBODY) as away:
        site.east = away
        async with site.mirroring(topic_settings_interval_ms=100) as service:
            await until(lambda: service.status()["sources"][1]["error"] is None)
            await change(site.west, retention_ms="3000", max_message_bytes="5000")
            await publish(site.west, b"w")
            for partition in (CLICKS, WEST_CLICKS):
                if partition.partition == service.status()["sources"][1]["partitions"][0]["replica_partition"]:
                    await until_copied(site.hub, partition, b"a", b"w")
            assert await followed(site.hub) == {"retention.ms": "9000", "segment.ms": "3600000"}


async def test_a_topic_of_the_hub_itself_keeps_its_settings(site: Site) -> None:
    await make(site.hub, retention_ms="-1")
    await make(site.east, partitions=2, retention_ms="1000")
    async with site.mirroring() as service:
        await until_said(service, "no mirror.source")
        await until_said(service, "no mirror.source", partition=1)
    assert await settings_of(site.hub) == {"retention.ms": "-1"}
    assert len((await site.hub.fetch_all_topics()).topics["clicks"].partitions) == 1


async def times(cluster: Cluster) -> list[int]:
    async with open_consumer(cluster, ConsumerConfig(max_wait_ms=50)) as consumer:
        consumer.assign({CLICKS: 0})
        found: list[int] = []
        async for record in consumer.records():
            found.append(record.timestamp_ms)
            if len(found) == 2:
                break
        return found


async def test_copies_keep_the_times_that_their_source_has_set(site: Site) -> None:
    await make(site.east, message_timestamp_type="LogAppendTime")
    await publish(site.east, b"a")
    await change(site.east, message_timestamp_type=None)
    await publish(site.east, b"b")
    await change(site.east, message_timestamp_type="LogAppendTime")
    await trio.sleep(0.01)
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a", b"b")
        await until_followed(site.hub, message_timestamp_type="LogAppendTime")
        assert await times(site.hub) == await times(site.east)


async def provenance_of(hub: Cluster, topic: str = "clicks") -> list[str]:
    text = (await settings_of(hub, topic)).get(MIRROR_PARTITIONS)
    found = Provenance() if text is None else Provenance.parse(text)
    return [str(found.origin_of(number)) for number in range(sum(copied.count for copied in found.ranges))]


async def test_a_replica_says_whose_copy_each_partition_is(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
        assert await provenance_of(site.hub) == ["east/clicks-0"]
        await make(site.west)
        await publish(site.west, b"w")
        await until_copied(site.hub, WEST_CLICKS, b"w")
        await create_partitions(site.east, {"clicks": 2})
        await publish(site.east, b"a", partition=1)
        await until_copied(site.hub, TopicPartition("clicks", 2), b"a")
    assert await provenance_of(site.hub) == ["east/clicks-0", "west/clicks-0", "east/clicks-1"]
    ((copied, *_), view) = Provenance.parse((await settings_of(site.hub))[MIRROR_PARTITIONS]).ranges, site.east.view
    assert copied.origin.path == (view.cluster_id,)
    assert copied.origin.topic_id == view.topics["clicks"].id


async def test_a_replica_of_two_sources_is_not_compared_with_its_entries_at_each_refresh(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(site.east)
    await make(site.west)
    refreshes = comparisons = 0
    read_on, compare = TableJournal.read_on, replica_topics._with_origins

    async def refresh(journal: TableJournal) -> None:
        nonlocal refreshes
        refreshes += 1
        await read_on(journal)

    def note(*args: Any) -> Any:
        nonlocal comparisons
        comparisons += 1
        return compare(*args)

    async with site.mirroring(refresh_interval_ms=100) as service:
        await until(lambda: all(len(source["partitions"]) == 1 for source in service.status()["sources"]))
        monkeypatch.setattr(TableJournal, "read_on", refresh)
        monkeypatch.setattr(replica_topics, "_with_origins", note)
        await until(lambda: refreshes > 12)
    assert comparisons <= 6, f"{comparisons} of {refreshes}"  # a few until both are at rest


async def test_a_replica_of_an_older_mirror_gets_its_entries_from_the_table(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")

    async def older_features(broker: BrokerId) -> dict[str, tuple[int, int]]:
        return {"pipeline.keep_offsets": (1, 1)}

    features = site.hub.features
    site.hub.features = older_features  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as logs:
        async with site.mirroring():
            await until_copied(site.hub, CLICKS, b"a")
            await publish(site.east, b"b")
            await until_copied(site.hub, CLICKS, b"a", b"b")
    assert [line["event"] for line in logs].count("sources_not_checked") == 1
    assert await provenance_of(site.hub) == []
    site.hub.features = features  # type: ignore[method-assign]
    async with site.mirroring():
        await publish(site.east, b"c")
        await until_copied(site.hub, CLICKS, b"a", b"b", b"c")
    assert await provenance_of(site.hub) == ["east/clicks-0"]


async def test_a_replica_that_contradicts_a_lost_table_gets_nothing(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"e")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"e")
        await make(site.west)
        await publish(site.west, b"w")
        await until_copied(site.hub, WEST_CLICKS, b"w")
    await delete_topics(site.hub, [TABLE_TOPIC])
    journal = TableJournal(site.hub, lambda _records: None)
    await journal.open()
    west = SourcePartition(
        cluster="west",
        partition=CLICKS,
        topic_id=(await site.west.fetch_all_topics()).topics["clicks"].id,
        cluster_id=site.west.view.cluster_id,
    )
    await journal.propose([Proposal(source=west, replica_topic="clicks")], clock=clock, rng=Random(1))
    for cluster in (site.east, site.west):
        await publish(cluster, b"more")
    async with site.mirroring() as service:
        await until_said(service, "the table was lost or is that of another hub", source="west")
        await until_said(service, "has clicks-0 as the copy of west/clicks-0", source="west")
        await until_said(service, "replica partition 0 is a copy of east/clicks-0", source="west")
        await until_said(service, "has clicks-1 as the copy of east/clicks-0")
    assert await read(site.hub, CLICKS) == [(0, b"e")]
    assert await read(site.hub, WEST_CLICKS) == [(0, b"w")]


async def test_entries_that_another_mirror_writes_at_the_same_time_are_kept(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
        text = (await settings_of(site.hub))[MIRROR_PARTITIONS]
        other = {**json.loads(text)[0], "source": "north", "path": ["N"], "at": 7}
        await change(site.hub, mirror_partitions=json.dumps([*json.loads(text), other]))
        await create_partitions(site.east, {"clicks": 2})
        await publish(site.east, b"b", partition=1)
        await until_copied(site.hub, WEST_CLICKS, b"b")
    found = Provenance.parse((await settings_of(site.hub))[MIRROR_PARTITIONS])
    names = [str(found.origin_of(number)) for number in (0, 1, 7)]
    assert names == ["east/clicks-0", "east/clicks-1", "north/clicks-0"]


async def test_a_replica_that_another_mirror_has_grown_is_copied_on(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring(), open_cluster(site.hub.config) as other:
        await until_copied(other, CLICKS, b"a")
        await create_partitions(other, {"clicks": 2})
        await create_partitions(site.east, {"clicks": 2})
        await publish(site.east, b"b", partition=1)
        await until_copied(other, WEST_CLICKS, b"b")
