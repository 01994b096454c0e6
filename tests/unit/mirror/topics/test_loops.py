"""Mirrors in a ring: records never come back into a cluster that they have passed, nor twice into one."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pipeline.client.cluster.cluster import open_cluster
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from tests.support.mirrors import CLICKS, NOBODY, Site, make, mirroring_of, publish, read, until, until_copied


def error_of(service: MirrorService) -> str:
    return service.status()["sources"][0]["error"] or ""


async def test_a_copy_does_not_come_back_from_its_replica(site: Site) -> None:
    """A-B-A, with a topic of its own name in each cluster."""
    await make(site.east)
    await publish(site.east, b"a")
    async with mirroring_of(site.hub, east=site.east), mirroring_of(site.east, hub=site.hub) as back:
        await until_copied(site.hub, CLICKS, b"a")
        await until(lambda: "clicks of hub is itself a copy of this cluster's clicks (east > hub)" in error_of(back))
        await publish(site.east, b"b")
        await until_copied(site.hub, CLICKS, b"a", b"b")
        assert back.status()["sources"][0]["partitions"] == []
    assert await read(site.east, CLICKS) == [(0, b"a"), (1, b"b")]
    for cluster in (site.east, site.hub):
        assert len((await cluster.fetch_all_topics()).topics["clicks"].partitions) == 1


async def test_a_copy_does_not_come_back_over_two_clusters(site: Site) -> None:
    """A-B-C-A, where the others go on."""
    await make(site.east)
    await make(site.west, topic="clicks.west")
    await publish(site.east, b"a")
    await publish(site.west, b"w", topic="clicks.west")
    async with (
        mirroring_of(site.hub, east=site.east),
        mirroring_of(site.west, hub=site.hub),
        mirroring_of(site.east, west=site.west) as back,
    ):
        await until_copied(site.west, CLICKS, b"a")
        await until(lambda: "clicks of west is itself a copy of" in error_of(back))
        assert f"({site.east.view.cluster_id} > hub > west)" in error_of(back)
        await until_copied(site.east, TopicPartition("clicks.west", 0), b"w")
        await until_copied(site.hub, TopicPartition("clicks.west", 0), b"w")
    assert await read(site.east, CLICKS) == [(0, b"a")]


SECOND_PATH = (
    "clicks of hub is itself a copy of east's clicks (east > hub), which this mirror copies from east: its records "
    "would be there twice"
)


def errors_of(service: MirrorService) -> dict[str, str | None]:
    return {each["name"]: each["error"] for each in service.status()["sources"]}


@pytest.mark.long
@pytest.mark.parametrize("names", [("hub", "east"), ("east", "hub")])
async def test_a_topic_that_comes_by_two_paths_is_copied_from_its_own_cluster(site: Site, names: Sequence[str]) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    clusters = {"east": site.east, "hub": site.hub}
    async with mirroring_of(site.hub, east=site.east):
        await until_copied(site.hub, CLICKS, b"a")
        async with mirroring_of(site.west, **{name: clusters[name] for name in names}) as archive:
            await until(lambda: errors_of(archive) == {"east": None, "hub": SECOND_PATH})
            await publish(site.east, b"b")
            await until_copied(site.hub, CLICKS, b"a", b"b")
            await until_copied(site.west, CLICKS, b"a", b"b")
    assert await read(site.west, CLICKS) == [(0, b"a"), (1, b"b")]
    assert len((await site.west.fetch_all_topics()).topics["clicks"].partitions) == 1


@pytest.mark.long
async def test_a_topic_comes_by_the_hub_while_its_own_cluster_has_not_answered(site: Site) -> None:
    """Nobody copies it meanwhile: later it would be there twice."""
    await make(site.east)
    await publish(site.east, b"a")
    async with mirroring_of(site.hub, east=site.east):
        await until_copied(site.hub, CLICKS, b"a")
        async with open_cluster(NOBODY) as away, mirroring_of(site.west, east=away, hub=site.hub) as archive:
            await until(lambda: errors_of(archive)["hub"] == SECOND_PATH)
    assert "clicks" not in (await site.west.fetch_all_topics()).topics


OWN_REPLICAS = {
    "own": {"source": "east", "topics": ["clicks"], "replica.topic": "{source}.{topic}"},
    "copies": {"source": "hub", "topics": ["clicks"], "replica.topic": "{source}.{topic}"},
}
ONE_SELECTED = {"own": {"source": "east", "topics": ["views"]}, "copies": {"source": "hub", "topics": ["clicks"]}}


@pytest.mark.long
@pytest.mark.parametrize(
    ("flows", "replicas"), [(OWN_REPLICAS, ["east.clicks", "hub.clicks"]), (ONE_SELECTED, ["clicks"])]
)
async def test_two_paths_to_two_replicas_or_of_one_selected_topic_are_no_fault(
    site: Site, flows: Mapping[str, Mapping[str, Any]], replicas: Sequence[str]
) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    settings = {"flows": [{"name": name, **flow} for name, flow in flows.items()]}
    async with mirroring_of(site.hub, east=site.east):
        await until_copied(site.hub, CLICKS, b"a")
        async with mirroring_of(site.west, None, settings, east=site.east, hub=site.hub) as archive:
            for name in replicas:
                await until_copied(site.west, TopicPartition(name, 0), b"a")
            assert errors_of(archive) == {"east": None, "hub": None}
