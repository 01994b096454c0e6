"""What the registry's HTTP server answers for its page: files, the way to it, and the topics that validate."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.client.admin.resource_configs import ConfigResource, alter_configs
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.model import HostPort
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.schema_registry.page.registry_page import FILES, PAGE_PATH
from pipeline.schema_registry.page.validating_topics import ValidatingTopics, demands_of
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.brokers import serving_cluster
from tests.support.mirrors import make

Open = Callable[..., Any]
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
NOBODY = ClientConfig(bootstrap=(HostPort("127.0.0.1", 1),))
TIMEOUT_S = 30


async def test_the_files_have_a_policy_that_forbids_other_hosts_and_inline_scripts(
    journal: MemoryJournal, open_registry: Open
) -> None:
    async with open_registry(journal) as http:
        for path, kind in {PAGE_PATH: "text/html", **{path: kind for path, (_, kind) in FILES.items()}}.items():
            answer = await http.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert b"://" not in answer.content


def test_every_file_of_the_page_is_served() -> None:
    folder = Path("pipeline/schema_registry/page/static")
    assert {name for name, _ in FILES.values()} | {"index.html"} == {path.name for path in folder.iterdir()}


async def test_browsers_are_led_to_the_page_and_clients_of_the_api_are_not(
    journal: MemoryJournal, open_registry: Open
) -> None:
    async with open_registry(journal) as http:
        for path in ("/", "/ui"):
            answer = await http.get(path, headers=BROWSER)
            assert answer.is_redirect
            assert answer.next_request.url.path == PAGE_PATH
        answer = await http.get("/", headers=BROWSER, follow_redirects=True)
        assert answer.headers["content-type"].startswith("text/html")
        for accept in ("*/*", "application/vnd.schemaregistry.v1+json", "application/json"):
            answer = await http.get("/", headers={"Accept": accept})
            assert (answer.status_code, answer.json()) == (200, {})
        assert (await http.get("/ui/other")).status_code == 404
        assert (await http.get("/ui/../subjects")).json() == []


async def test_a_registry_without_brokers_says_so(journal: MemoryJournal, open_registry: Open) -> None:
    async with open_registry(journal) as http:
        assert (await http.get("/ui/topics")).json() == {"error": "this registry asks no brokers"}


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({}, None, None),
        ({"confluent.value.schema.validation": "false", "confluent.key.schema.validation": "false"}, None, None),
        (
            {"confluent.value.schema.validation": "true"},
            None,
            {"strategy": "TopicNameStrategy", "decodes": False},
        ),
        (
            {
                "confluent.key.schema.validation": "true",
                "confluent.key.subject.name.strategy": "io.confluent.kafka.serializers.subject.RecordNameStrategy",
                "pipeline.value.schema.decode": "true",
            },
            {"strategy": "RecordNameStrategy", "decodes": False},
            {"strategy": "TopicNameStrategy", "decodes": True},
        ),
    ],
)
def test_demands_of_a_topic(settings: dict[str, str], key: Any, value: Any) -> None:
    assert demands_of(settings) == {"key": key, "value": value}


async def test_topics_that_validate_are_those_of_the_brokers_and_kept_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_cluster(tmp_path) as cluster:
        await make(cluster)
        topics = ValidatingTopics(cluster)
        before = await topics.document()
        assert (before["topics"], before["asked"]) == ([], 1)
        changes = {ConfigResource(ResourceType.TOPIC, "clicks"): {"confluent.value.schema.validation": "true"}}
        await alter_configs(cluster, changes, timeout_s=TIMEOUT_S)
        assert (await topics.document())["topics"] == []
        monkeypatch.setattr("pipeline.schema_registry.page.validating_topics.KEPT_S", 0)
        found = await topics.document()
        assert found["topics"] == [
            {"topic": "clicks", "key": None, "value": {"strategy": "TopicNameStrategy", "decodes": False}}
        ]


async def test_brokers_that_do_not_answer_are_asked_once_in_a_while(autojump_clock: trio.testing.MockClock) -> None:
    async with open_cluster(NOBODY) as away:
        topics = ValidatingTopics(away)
        first = await topics.document()
        assert first["error"]
        began = trio.current_time()
        assert (await topics.document())["error"] == first["error"]
        assert trio.current_time() == began
