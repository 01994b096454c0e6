"""Mirrors in a ring: records never come back into a cluster that they have passed."""

from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from tests.support.mirrors import CLICKS, Site, make, mirroring_of, publish, read, until, until_copied


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
