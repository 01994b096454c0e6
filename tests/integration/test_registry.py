"""The registry over a real broker: replay, loss of the broker, two registries at once."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import httpx
import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.client.admin.topics import NewTopic, create_topics, delete_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.registry.avro import AvroDeserializer, AvroSerializer
from pipeline.client.registry.client import open_schema_registry
from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.schema_registry.config import RegistryConfig
from pipeline.schema_registry.server import run_registry
from pipeline.testing.local_cluster import LocalCluster

DEADLINE_S = 180
EVENT = '{"type":"record","name":"Event","fields":[{"name":"status","type":"int"}]}'


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with LocalCluster(tmp_path_factory.mktemp("local"), restart_after_s=1) as local:
        yield local


@asynccontextmanager
async def registry_over(
    bootstrap: Any, topic: Any, *, clock: Any = lambda: 1_700_000_000_000, **settings: Any
) -> AsyncIterator[Any]:
    """A registry in this process; gives its URL."""
    given = {
        "bootstrap.servers": bootstrap,
        "http.listen": "127.0.0.1:0",
        "kafkastore.topic": topic,
        "kafkastore.timeout.ms": 120_000,
        **settings,
    }
    config = RegistryConfig.from_settings(given)
    async with (
        open_cluster(ClientConfig(bootstrap=config.bootstrap_servers)) as cluster,
        trio.open_nursery() as nursery,
    ):

        async def serve(task_status: Any) -> None:
            await run_registry(
                config,
                cluster,
                clock=clock,
                rng=Random(1),
                metrics=CollectorRegistry(),
                task_status=task_status,
            )

        address: HostPort = await nursery.start(serve)
        yield f"http://{address}"
        nursery.cancel_scope.cancel()


async def test_registered_schemas_survive_a_restart(local: Any) -> None:
    async with registry_over(local.bootstrap, "_schemas") as url, open_schema_registry([url]) as registry:
        data = await AvroSerializer(registry, EVENT).serialize("log", {"status": 200})
        await registry.set_level("FULL", "log-value")
    async with registry_over(local.bootstrap, "_schemas") as url, open_schema_registry([url]) as registry:
        assert await AvroDeserializer(registry).deserialize(data) == {"status": 200}
        assert await registry.level("log-value") == "FULL"
        assert await registry.register("other-value", '"int"') == 2


async def test_clocks_that_jump_do_not_matter(local: Any) -> None:
    now_ms = [0]
    registry_at = registry_over(local.bootstrap, "_clocks", clock=lambda: now_ms[0])
    async with registry_at as url, open_schema_registry([url]) as registry:
        for number, time_ms in enumerate([1_700_000_000_000, 9_000_000_000_000, 1, 9_000_000_000_000], 1):
            now_ms[0] = time_ms
            assert (
                await registry.register(f"clock{number}", f'{{"type":"fixed","name":"F{number}","size":1}}') == number
            )


async def test_two_registries_share_one_topic(local: Any) -> None:
    async with (
        registry_over(local.bootstrap, "_two") as one_url,
        registry_over(local.bootstrap, "_two") as other_url,
        open_schema_registry([one_url]) as one,
        open_schema_registry([other_url]) as other,
    ):
        ids = {}

        async def register(registry: Any, name: Any) -> None:
            for number in range(10):
                text = f'{{"type":"fixed","name":"{name}{number}","size":1}}'
                ids[text] = await registry.register(f"{name}{number}-value", text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(register, one, "A")
            nursery.start_soon(register, other, "B")
        assert len(set(ids.values())) == 20
        for registry in (one, other):
            assert {text: await registry.schema_text(schema_id) for text, schema_id in ids.items()} == {
                text: text for text in ids
            }


async def test_the_broker_is_killed_and_comes_back(local: Any) -> None:
    async with (
        registry_over(local.bootstrap, "_killed", **{"kafkastore.timeout.ms": 3000}) as url,
        httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http,
    ):
        path = "/subjects/s/versions"
        assert (await registered(http, path, EVENT))["id"] == 1
        local.kill("broker-1")
        refused = await http.post("/subjects/t/versions", json={"schema": '"long"'})
        assert (await http.get("/schemas/ids/1")).json()["schema"] == EVENT
        assert (await http.post(path, json={"schema": EVENT})).json()["id"] == 1
        assert refused.status_code == 200 or refused.json()["error_code"] in {50001, 50002}
        assert (await registered(http, "/subjects/t/versions", '"long"'))["id"] == 2


async def registered(http: Any, path: Any, schema: Any) -> Any:
    """What a registry says that may be without its broker, or slow, for a while."""
    with trio.fail_after(DEADLINE_S):
        while (response := await http.post(path, json={"schema": schema})).status_code != 200:
            assert response.json()["error_code"] in {50001, 50002}
    return response.json()


async def test_a_topic_of_several_partitions_is_refused(local: Any) -> None:
    config = ClientConfig(
        bootstrap=RegistryConfig.from_settings({"bootstrap.servers": local.bootstrap}).bootstrap_servers
    )
    async with open_cluster(config) as cluster:
        await create_topics(cluster, [NewTopic(name="_wide", partitions=2, replication_factor=1)])
    with pytest.raises(ConfigurationError, match=r"kafkastore\.topic: .* has 2 partitions") as caught:
        async with registry_over(local.bootstrap, "_wide"):
            pass
    assert caught.value.key == "kafkastore.topic"


async def test_a_topic_that_deletes_schemas_by_their_age_is_refused_with_the_remedy(local: Any) -> None:
    config = ClientConfig(
        bootstrap=RegistryConfig.from_settings({"bootstrap.servers": local.bootstrap}).bootstrap_servers
    )
    topic = NewTopic(name="_aging", partitions=1, replication_factor=1, configs={"cleanup.policy": "delete"})
    async with open_cluster(config) as cluster:
        await create_topics(cluster, [topic])
    with pytest.raises(ConfigurationError, match=r"_aging has cleanup\.policy=delete") as caught:
        async with registry_over(local.bootstrap, "_aging"):
            pass
    command = str(caught.value).partition("run: pipeline ")[2].split()
    remedy = [sys.executable, "-m", "pipeline", *command, "-b", local.bootstrap]
    await trio.run_process(remedy, capture_stdout=True)
    async with registry_over(local.bootstrap, "_aging") as url, open_schema_registry([url]) as registry:
        assert await registry.register("s", '"int"') == 1


async def test_a_topic_that_was_deleted_or_emptied_is_not_begun_anew(local: Any) -> None:
    """A registry that runs answers reads from memory; one that starts refuses, and says what to do."""
    config = ClientConfig(
        bootstrap=RegistryConfig.from_settings({"bootstrap.servers": local.bootstrap}).bootstrap_servers
    )
    async with (
        open_cluster(config) as cluster,
        registry_over(local.bootstrap, "_gone") as url,
        httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http,
    ):
        assert (await http.post("/subjects/s/versions", json={"schema": EVENT})).json()["id"] == 1
        assert (await http.post("/subjects/t/versions", json={"schema": '"int"'})).json()["id"] == 2
        await delete_topics(cluster, ["_gone"])
        with pytest.raises(ConfigurationError, match=r"kafkastore\.topic: .*, but ids up to 2 were given out"):
            async with registry_over(local.bootstrap, "_gone"):
                pass
        await create_topics(
            cluster, [NewTopic(name="_gone", partitions=1, replication_factor=1, configs={"cleanup.policy": "compact"})]
        )
        with trio.fail_after(DEADLINE_S):
            while "lost" not in (await http.get("/healthz")).text:
                refused = await http.post("/subjects/u/versions", json={"schema": '"long"'})
                assert (refused.status_code, refused.json()["error_code"]) in {(500, 50001), (500, 50002)}
        refused = await http.post("/subjects/u/versions", json={"schema": '"long"'})
        assert "Reads go on from memory" in refused.json()["message"]
        assert (await http.get("/schemas/ids/2")).json()["schema"] == '"int"'
        with pytest.raises(ConfigurationError, match=r"kafkastore\.topic: .*, but ids up to 2 were given out"):
            async with registry_over(local.bootstrap, "_gone"):
                pass
        await delete_topics(cluster, ["_gone_guard"])
    async with registry_over(local.bootstrap, "_gone") as url, open_schema_registry([url]) as registry:
        assert await registry.register("s", '"int"') == 1  # the operator wanted it


async def test_topics_that_validate_are_those_of_the_cluster(local: Any) -> None:
    contract = NewTopic(
        name="contract", partitions=1, replication_factor=1, configs={"confluent.value.schema.validation": "true"}
    )
    config = ClientConfig(
        bootstrap=RegistryConfig.from_settings({"bootstrap.servers": local.bootstrap}).bootstrap_servers
    )
    async with open_cluster(config) as cluster:
        await create_topics(cluster, [contract], timeout_s=DEADLINE_S)
    async with registry_over(local.bootstrap, "_page") as url, httpx.AsyncClient(base_url=url) as http:
        answer = (await http.get("/ui/topics", timeout=DEADLINE_S)).json()
        assert answer["topics"] == [
            {"topic": "contract", "key": None, "value": {"strategy": "TopicNameStrategy", "decodes": False}}
        ]
