"""Sources that must not be copied: two names of one cluster, the hub itself, another cluster than before."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.audit.config import AuditConfig
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.errors import ConfigurationError
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.journals.table import TABLE_TOPIC
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from tests.support.mirrors import CLICKS, DEADLINE_S, Site, make, publish, read, until, until_copied, until_said
from tests.support.partition_tables import JOURNAL

CLUSTERS = [{"name": "east", "bootstrap.servers": "one:1"}, {"name": "east", "bootstrap.servers": "two:1"}]


def test_two_sources_of_one_name_are_refused() -> None:
    settings = {"destination.bootstrap.servers": "h:1", "topics": ["a"], "http.listen": "h:0", "sources": CLUSTERS}
    with pytest.raises(ConfigurationError, match="sources: has 2 tables of the name east"):
        MirrorConfig.from_settings(settings)


@pytest.mark.parametrize("tables", [{"live": CLUSTERS}, {"live": CLUSTERS[:1], "replica": CLUSTERS[1:]}])
def test_two_audited_clusters_of_one_name_are_refused(tables: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="give the name east to 2 clusters"):
        AuditConfig.from_settings({"http.listen": "h:0", **tables})


def error_of(service: MirrorService, source: str) -> str:
    return next(one["error"] for one in service.status()["sources"] if one["name"] == source) or ""


async def test_the_second_name_of_a_cluster_is_refused(site: Site) -> None:
    site.west = site.east
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring() as service:
        await until_copied(site.hub, CLICKS, b"a")
        await until(lambda: "the same cluster as east" in error_of(service, "west"))
        assert service.status()["sources"][1]["partitions"] == []
        assert error_of(service, "east") == ""
    assert len((await site.hub.fetch_all_topics()).topics["clicks"].partitions) == 1


async def test_a_hub_is_not_copied_into_itself(site: Site) -> None:
    site.west = site.hub
    await make(site.hub, topic="clicks.own")
    await make(site.east)
    await publish(site.hub, b"own", topic="clicks.own")
    await publish(site.east, b"a")
    async with site.mirroring() as service:
        await until(lambda: "the destination itself" in error_of(service, "west"))
        await until_copied(site.hub, CLICKS, b"a")
        assert service.status()["sources"][1]["partitions"] == []
    assert await read(site.hub, TopicPartition("clicks.own", 0)) == [(0, b"own")]


@pytest.mark.long
async def test_another_cluster_under_a_known_name_is_refused_until_it_is_mended(site: Site) -> None:
    east, west = site.east, site.west
    await make(east)
    await publish(east, b"e")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"e")
        await make(west)
        await publish(west, b"w")
        await until_copied(site.hub, TopicPartition("clicks", 1), b"w")
    records = len(await read(site.hub, TopicPartition(TABLE_TOPIC, 0)))
    site.east = west
    async with site.mirroring() as service:
        await until(lambda: "correct bootstrap.servers" in error_of(service, "east"))
        await publish(west, b"w2")
        await until_copied(site.hub, TopicPartition("clicks", 1), b"w", b"w2")
    assert await read(site.hub, CLICKS) == [(0, b"e")]
    assert len(await read(site.hub, TopicPartition(TABLE_TOPIC, 0))) == records


async def test_a_source_that_becomes_another_cluster_under_a_running_mirror_is_stopped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(site.east)
    await publish(site.east, b"e")
    async with site.mirroring() as service:
        await until_copied(site.hub, CLICKS, b"e")
        with monkeypatch.context() as patched:
            patched.setattr(site.east, "fetch_all_topics", site.west.fetch_all_topics)
            await until_said(service, "correct bootstrap.servers")
        await publish(site.east, b"e2")
        await until_copied(site.hub, CLICKS, b"e", b"e2")


async def test_a_cluster_id_that_the_table_cannot_hold_is_a_problem_of_the_source(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(site.east)
    fetch = site.east.fetch_all_topics

    async def fetch_strange(**settings: Any) -> ClusterMetadata:
        return replace(await fetch(**settings), cluster_id="two\nlines")

    monkeypatch.setattr(site.east, "fetch_all_topics", fetch_strange)
    async with site.mirroring() as service:
        await until(lambda: "cannot hold the entries of 1 source partitions" in error_of(service, "east"))
        assert "clicks-0: `cluster_id` is not printable text" in error_of(service, "east")
    listed = await list_offsets(site.hub, {JOURNAL: LATEST}, timeout_s=DEADLINE_S)
    assert listed[JOURNAL].offset == 0
