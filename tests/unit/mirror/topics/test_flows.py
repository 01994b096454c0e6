"""Flows of a mirror between real brokers: names of replicas, aggregates, internal topics, policies of gaps, loops."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import httpx
import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.client.admin.groups import CommittedOffset, commit_offsets, fetch_offsets
from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.resource_configs import ConfigResource, alter_configs
from pipeline.client.admin.topics import create_partitions
from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.service import MirrorService
from pipeline.model import HostPort, TopicPartition
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.schema_registry.config import RegistryConfig
from pipeline.schema_registry.server import run_registry
from tests.support.brokers import clock
from tests.support.group_moves import COPYING
from tests.support.mirrors import (
    DEADLINE_S,
    Site,
    make,
    mirroring_of,
    publish,
    read,
    settings_of,
    until,
    until_copied,
    until_said,
)

SCHEMAS = TopicPartition("_schemas", 0)


def flow(name: str, topics: list[str], replica: str = "{topic}", source: str = "east") -> dict[str, Any]:
    return {"name": name, "source": source, "topics": topics, "replica.topic": replica}


def partitions(service: MirrorService) -> list[dict[str, Any]]:
    return [line for source in service.status()["sources"] for line in source["partitions"]]


def remarks(service: MirrorService, name: str) -> list[dict[str, Any]]:
    (found,) = [each for each in service.status()["flows"] if each["name"] == name]
    listed: list[dict[str, Any]] = found["remarks"]
    assert found["remark_count"] == len(listed)
    return listed


async def topics_of(cluster: Cluster) -> set[str]:
    return {name for name in (await cluster.fetch_all_topics()).topics if not name.startswith("_")}


async def test_topics_have_replicas_of_their_own_and_of_all_sources(site: Site) -> None:
    """A later topic that a pattern matches is copied as well."""
    flows = [
        flow("east-orders", ["orders"], "{source}.{topic}"),
        flow("east-pages", ["page.*"]) | {"topics.exclude": ["page_tests"]},
        flow("west-pages", ["page.*"], source="west"),
    ]
    for cluster, value in ((site.east, b"e"), (site.west, b"w")):
        for topic in ("orders", "page_views"):
            await make(cluster, topic)
            await publish(cluster, value, topic=topic)
    async with site.mirroring(flows=flows) as service:
        await until_copied(site.hub, TopicPartition("east.orders", 0), b"e")
        await until(lambda: len(partitions(service)) == 3)
        places = {(line["flow"], line["replica_topic"], line["replica_partition"]) for line in partitions(service)}
        assert {name for name, *_ in places} == {"east-orders", "east-pages", "west-pages"}
        assert {place[1:] for place in places} == {("east.orders", 0), ("page_views", 0), ("page_views", 1)}
        (west,) = [line for line in partitions(service) if line["flow"] == "west-pages"]
        await until_copied(site.hub, TopicPartition("page_views", west["replica_partition"]), b"w")
        await make(site.east, "page_tests")
        await make(site.east, "page_clicks")
        await publish(site.east, b"later", topic="page_clicks")
        await until_copied(site.hub, TopicPartition("page_clicks", 0), b"later")
        assert [each["topics"] for each in service.status()["flows"]] == [1, 2, 1]
    assert await topics_of(site.hub) == {"east.orders", "page_views", "page_clicks"}


@pytest.mark.long
async def test_topics_of_one_source_become_one_replica(site: Site) -> None:
    """The replica keeps what the topic keeps that keeps more."""
    await make(site.east, "old", retention_ms="3600000000")
    await make(site.east, "new", retention_ms="7200000000")
    await publish(site.east, b"o", topic="old")
    await publish(site.east, b"n", topic="new")
    async with site.mirroring(flows=[flow("both", ["old", "new"], "all")]) as service:
        await until_copied(site.hub, TopicPartition("all", 0), b"n")
        await until_copied(site.hub, TopicPartition("all", 1), b"o")
        assert (await settings_of(site.hub, "all"))["retention.ms"] == "7200000000"
        (shown,) = service.status()["topics"]
        assert "7200000000 in east/new, 3600000000 in east/old" in shown["problems"][0]
        await create_partitions(site.east, {"new": 2})
        await site.east.refresh()
        await publish(site.east, b"n1", topic="new", partition=1)
        await until_copied(site.hub, TopicPartition("all", 2), b"n1")


@pytest.mark.long
async def test_settings_and_offsets_of_groups_follow_to_renamed_replicas(site: Site) -> None:
    flows = [flow("both", ["a", "b"], "all"), flow("rest", [".*"], "{source}.{topic}")]
    for topic in ("a", "b", "clicks"):
        await make(site.east, topic)
        await publish(site.east, b"0", b"1", b"2", topic=topic)
    places = [TopicPartition(topic, 0) for topic in ("a", "b", "clicks")]
    await commit_offsets(site.east, "g", {each: CommittedOffset(offset=n) for n, each in enumerate(places, 1)})
    async with site.mirroring(flows=flows, topic_settings_interval_ms=100, **COPYING):
        replicas = [TopicPartition("all", 0), TopicPartition("all", 1), TopicPartition("east.clicks", 0)]
        expected = {each: CommittedOffset(offset=n) for n, each in enumerate(replicas, 1)}
        found: object = None
        with trio.fail_after(DEADLINE_S):
            while found != expected:
                await trio.sleep(0.02)
                found = await fetch_offsets(site.hub, "g")
        for topic, replica in (("b", "all"), ("clicks", "east.clicks")):
            resource = ConfigResource(ResourceType.TOPIC, topic)
            await alter_configs(site.east, {resource: {"retention.ms": "7200000000"}}, timeout_s=DEADLINE_S)
            with trio.fail_after(DEADLINE_S):
                while (await settings_of(site.hub, replica)).get("retention.ms") != "7200000000":
                    await trio.sleep(0.02)


async def test_a_topic_of_two_flows_is_copied_once(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring(flows=[flow("first", ["clicks"]), flow("second", [".*"], "x.{topic}")]) as service:
        await until_copied(site.hub, TopicPartition("clicks", 0), b"a")
        text = "copied by the flow first, which stands before this one in the settings"
        assert remarks(service, "second") == [{"topic": "clicks", "remark": text, "is_copied": True}]
        assert remarks(service, "first") == []
    assert await topics_of(site.hub) == {"clicks"}


@pytest.mark.long
async def test_a_changed_template_moves_no_replica(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, TopicPartition("clicks", 0), b"a")
    await publish(site.east, b"b")
    await create_partitions(site.east, {"clicks": 2})
    await site.east.refresh()
    await publish(site.east, b"grown", partition=1)
    await make(site.east, "views")
    await publish(site.east, b"v", topic="views")
    async with site.mirroring(flows=[flow("renamed", [".*"], "{source}.{topic}")]) as service:
        await until_copied(site.hub, TopicPartition("clicks", 0), b"a", b"b")
        await until_copied(site.hub, TopicPartition("clicks", 1), b"grown")
        await until_copied(site.hub, TopicPartition("east.views", 0), b"v")
        text = "its replica is clicks, recorded in _mirror_partitions; the setting asks for east.clicks"
        assert remarks(service, "renamed") == [{"topic": "clicks", "remark": text, "is_copied": True}]
    assert await topics_of(site.hub) == {"clicks", "east.views"}


async def test_a_topic_whose_replica_would_have_an_illegal_name_is_shown_and_others_go_on(site: Site) -> None:
    await make(site.east, "t" * 249)
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring(flows=[flow("long", [".*"], "{source}.{topic}")]) as service:
        await until_copied(site.hub, TopicPartition("east.clicks", 0), b"a")
        (found,) = remarks(service, "long")
        assert (found["topic"], found["is_copied"]) == ("t" * 249, False)
        assert "has 254 characters, at most 249 are allowed" in found["remark"]
        assert [line["topic"] for line in partitions(service)] == ["clicks"]
        assert service.status()["sources"][0]["error"] is None


async def test_a_flow_has_a_policy_of_gaps_of_its_own(site: Site) -> None:
    names = ("kept", "skipped")
    flows = [flow("halts", ["kept"]), flow("skips", ["skipped"]) | {"gap.policy": "skip"}]
    for topic in names:
        await make(site.east, topic)
        await publish(site.east, b"copied", topic=topic)
    async with site.mirroring(flows=flows):
        for topic in names:
            await until_copied(site.hub, TopicPartition(topic, 0), b"copied")
    for topic in names:
        await publish(site.east, b"lost", b"later", topic=topic)
        await delete_records(site.east, {TopicPartition(topic, 0): 2}, timeout_s=DEADLINE_S)
    async with site.mirroring(flows=flows) as service:
        await until_said(service, "deleted offsets 1 to 1")
        with trio.fail_after(DEADLINE_S):
            while len(found := await read(site.hub, TopicPartition("skipped", 0))) < 2:
                await trio.sleep(0.02)
        assert found == [(0, b"copied"), (2, b"later")]
        states = {line["flow"]: line["state"] for line in partitions(service)}
        assert states["halts"] == "halted"
    assert await read(site.hub, TopicPartition("kept", 0)) == [(0, b"copied")]


@asynccontextmanager
async def registry_in(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a registry whose log is `_schemas` of the cluster."""
    settings = {"bootstrap.servers": "given:1", "http.listen": "127.0.0.1:0", "kafkastore.timeout.ms": 2000}
    config = RegistryConfig.from_settings(settings)
    serve = partial(run_registry, config, cluster, clock=clock, rng=Random(1), metrics=CollectorRegistry())
    async with trio.open_nursery() as nursery:
        address: HostPort = await nursery.start(serve)
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            yield client
        nursery.cancel_scope.cancel()


@pytest.mark.long
async def test_a_registry_reads_a_replica_of_schemas_and_cannot_write_there(site: Site) -> None:
    schema, path = {"schema": '"string"'}, "/subjects/clicks-value/versions"
    await make(site.east, "_other")
    async with registry_in(site.east) as registry:
        registered = (await registry.post(path, json=schema)).json()
    async with site.mirroring(flows=[flow("schemas", ["_schemas", ".*"])]) as service:
        written = await read(site.east, SCHEMAS)
        await until_copied(site.hub, SCHEMAS, *(value or b"" for _, value in written))
        assert (await settings_of(site.hub, "_schemas"))["cleanup.policy"] == "compact"
        assert {line["topic"] for line in partitions(service)} == {"_schemas"}
    async with registry_in(site.hub) as registry:
        found = (await registry.get(f"{path}/1")).json()
        assert (found["id"], found["schema"]) == (registered["id"], schema["schema"])
        refused = await registry.post("/subjects/views-value/versions", json={"schema": '"long"'})
        assert (refused.status_code, refused.json()["error_code"]) == (500, 50003)
    assert await read(site.hub, SCHEMAS) == written


def is_refused(service: MirrorService, topic: str) -> bool:
    return f"{topic} of" in (service.status()["sources"][0]["error"] or "")


@pytest.mark.long
@pytest.mark.parametrize("template", ["{topic}", "{source}.{topic}"])
async def test_two_mirrors_of_all_topics_give_no_copies_of_copies(site: Site, template: str) -> None:
    """A-B-A with patterns that match replicas."""
    await make(site.east, "from_east")
    await make(site.hub, "from_hub")
    await publish(site.east, b"e", topic="from_east")
    await publish(site.hub, b"h", topic="from_hub")
    there = {"flows": [flow("there", [".*"], template)]}
    back = {"flows": [flow("back", [".*"], template, source="hub")]}
    in_hub = template.format(source="east", topic="from_east")
    in_east = template.format(source="hub", topic="from_hub")
    async with (
        mirroring_of(site.hub, None, there, east=site.east) as first,
        mirroring_of(site.east, None, back, hub=site.hub) as second,
    ):
        await until_copied(site.hub, TopicPartition(in_hub, 0), b"e")
        await until_copied(site.east, TopicPartition(in_east, 0), b"h")
        await until(partial(is_refused, first, in_east))
        await until(partial(is_refused, second, in_hub))
        await publish(site.east, b"e1", topic="from_east")
        await until_copied(site.hub, TopicPartition(in_hub, 0), b"e", b"e1")
    for cluster, names in ((site.hub, {"from_hub", in_hub}), (site.east, {"from_east", in_east})):
        assert await topics_of(cluster) == names
        view = await cluster.fetch_all_topics()
        assert [len(view.topics[name].partitions) for name in sorted(names)] == [1, 1]
