"""A registry over a mirrored topic of schemas: reads without the source, forwarded writes, and how old it may be."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import httpx
import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.client.cluster.cluster import Cluster
from pipeline.model import HostPort
from pipeline.schema_registry.config import RegistryConfig
from pipeline.schema_registry.server import run_registry
from tests.support.brokers import clock
from tests.support.mirrors import DEADLINE_S, Site

FLOW: dict[str, Any] = {"flows": [{"name": "schemas", "source": "east", "topics": ["_schemas"]}]}
GROWN_S = 2.5
"""Staleness that shows that nothing was proven for longer than the interval of the questions."""


@asynccontextmanager
async def registry_in(cluster: Cluster, **given: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a registry whose log is `_schemas` of the cluster."""
    settings = {"bootstrap.servers": "given:1", "http.listen": "127.0.0.1:0", "kafkastore.timeout.ms": 20_000, **given}
    config = RegistryConfig.from_settings(settings)
    serve = partial(run_registry, config, cluster, clock=clock, rng=Random(), metrics=CollectorRegistry())
    async with trio.open_nursery() as nursery:
        address: HostPort = await nursery.start(serve)
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=DEADLINE_S) as client:
            yield client
        nursery.cancel_scope.cancel()


def fixed(name: str) -> dict[str, str]:
    return {"schema": f'{{"type":"fixed","name":"{name}","size":1}}'}


async def register(registry: httpx.AsyncClient, name: str) -> int:
    answer = await registry.post(f"/subjects/{name}/versions", json=fixed(name))
    assert answer.status_code == 200, answer.text
    return int(answer.json()["id"])


async def staleness_of(registry: httpx.AsyncClient) -> float | None:
    answer = await registry.get("/journal")
    told, shown = answer.json()["staleness_s"], answer.headers["x-staleness-seconds"]
    assert (told is None) == (shown == "unknown")
    return None if told is None else float(told)


async def until_grown(registry: httpx.AsyncClient) -> None:
    """Until the staleness shows that no question was answered with a proof for some time."""
    with trio.fail_after(DEADLINE_S):
        while (await staleness_of(registry) or 0) < GROWN_S:
            await trio.sleep(0.05)


async def until_fresh(registry: httpx.AsyncClient) -> None:
    with trio.fail_after(DEADLINE_S):
        while (age_s := await staleness_of(registry)) is None or age_s >= GROWN_S:
            await trio.sleep(0.05)


@pytest.mark.long
async def test_a_replica_reads_alone_forwards_writes_and_knows_how_old_it_may_be(site: Site) -> None:
    async with registry_in(site.east) as source:
        address = f"{source.base_url.host}:{source.base_url.port}"
        assert await register(source, "A") == 1
        urls = {"leader.urls": [f"http://{address}"]}
        async with site.mirroring(**FLOW) as mirror:
            assert mirror is not None
            async with registry_in(site.hub, **{"leader.eligibility": False, **urls}) as replica:
                await until_fresh(replica)  # the mirror may have made the topic and copied nothing yet
                assert (await replica.get("/schemas/ids/1")).json()["schema"] == fixed("A")["schema"]
                assert await register(replica, "B") == 2  # over there, and read back through the mirror
                assert (await replica.get("/schemas/ids/2")).json()["schema"] == fixed("B")["schema"]
                assert (await replica.delete("/subjects/B")).json() == [1]
                assert (await replica.get("/subjects")).json() == ["A"]
                await until_fresh(replica)
                assert (await replica.get("/subjects")).headers["x-staleness-seconds"] != "unknown"
        async with registry_in(site.hub, **urls) as replica:  # the topic says that it is a copy
            await until_fresh(replica)
            assert await register(source, "C") == 3  # while the mirror is away
            assert (await replica.get("/schemas/ids/3")).status_code == 404
            await until_grown(replica)
            async with site.mirroring(**FLOW):
                await until_fresh(replica)
                assert (await replica.get("/schemas/ids/3")).json()["schema"] == fixed("C")["schema"]
                everywhere = [(await each.get("/schemas?deleted=true")).json() for each in (source, replica)]
                assert everywhere[0] == everywhere[1]


@pytest.mark.long
async def test_a_replica_without_its_source_answers_reads_and_claims_no_freshness(site: Site) -> None:
    async with registry_in(site.east) as source:
        assert await register(source, "A") == 1
        async with site.mirroring(**FLOW), registry_in(site.hub, **{"leader.eligibility": False}) as replica:
            with trio.fail_after(DEADLINE_S):
                while (await replica.get("/schemas/ids/1")).status_code != 200:
                    await trio.sleep(0.02)
    async with registry_in(site.hub) as replica:  # the source was never reached
        assert (await replica.get("/schemas/ids/1")).json()["schema"] == fixed("A")["schema"]
        refused = await replica.post("/subjects/B/versions", json=fixed("B"))
        assert (refused.status_code, refused.json()["error_code"]) == (500, 50003)
        assert await register(replica, "A") == 1
        assert await staleness_of(replica) is None
        assert "registry_staleness_seconds NaN" in (await replica.get("/metrics")).text
