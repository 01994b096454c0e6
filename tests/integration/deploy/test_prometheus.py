"""The rules and dashboards in a real Prometheus that scrapes a broker and a registry, and sees ZooKeeper go away."""

import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.cli.foreground import service_metrics
from pipeline.processes import free_port
from pipeline.testing.memory_journal import MemoryJournal
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.dashboards import described, panels_of
from tests.support.registry import serving_registry
from tests.support.serving_broker import serving_broker

ROOT = Path(__file__).parents[3]
DEADLINE_S = 120
POLL_S = 0.2


@contextmanager
def prometheus(folder: Path, targets: list[dict[str, Any]]) -> Iterator[str]:
    """Run Prometheus with the rules of deploy/monitoring until the block ends; gives the URL of its API."""
    (folder / "targets.json").write_text(json.dumps(targets))
    (folder / "prometheus.yml").write_text(
        f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{ROOT / "deploy" / "monitoring"}/*-rules.yml"]
scrape_configs:
  - job_name: pipeline
    file_sd_configs: [{{files: [targets.json]}}]
"""
    )
    program = shutil.which("prometheus") or str(ROOT / ".cache" / "promtool" / "usr" / "bin" / "prometheus")
    address = f"127.0.0.1:{free_port()}"
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield f"http://{address}/api/v1"
    finally:
        process.kill()
        process.wait()


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not await condition():
            await trio.sleep(POLL_S)


@pytest.mark.long
async def test_rules_and_dashboards_work_on_real_services(tmp_path: Path) -> None:
    metrics, zookeeper = service_metrics(), MemoryZooKeeper()
    settings = {"broker.id": 1, "listeners": "PLAINTEXT://127.0.0.1:0", "http.listen": "127.0.0.1:0"}
    place = {"log.dirs": str(tmp_path / "logs"), "zookeeper.connect": "memory:0"}
    config = BrokerConfig.from_settings({**settings, **place})
    async with (
        zookeeper.open() as client,
        serving_broker(config, client, metrics) as broker,
        serving_registry(MemoryJournal(), metrics=CollectorRegistry()) as registry,
    ):
        addresses = {"broker": str(broker.http_address), "registry": registry.removeprefix("http://")}
        targets = [
            {"targets": [address], "labels": {"job": job, "datacenter": "east"}} for job, address in addresses.items()
        ]
        with prometheus(tmp_path, targets) as url:
            async with httpx.AsyncClient(timeout=30) as http:
                await check(http, url, zookeeper)


async def check(http: httpx.AsyncClient, url: str, zookeeper: MemoryZooKeeper) -> None:
    async def ask(path: str, **parameters: str) -> Any:
        try:
            answer = await http.get(f"{url}/{path}", params=parameters)
        except httpx.TransportError:
            return {}  # Prometheus starts
        assert answer.status_code in (200, 503), answer.text
        return answer.json()["data"] if answer.status_code == 200 else {}

    async def are_scraped() -> bool:
        return [each["health"] for each in (await ask("targets")).get("activeTargets", ())] == ["up", "up"]

    async def are_evaluated() -> bool:
        rules = [rule for group in (await ask("rules"))["groups"] for rule in group["rules"]]
        assert [rule["lastError"] for rule in rules if rule["health"] == "err"] == []
        return len(rules) > 50 and all(rule["health"] == "ok" for rule in rules)

    async def alerts(*states: str) -> set[str]:
        return {each["labels"]["alertname"] for each in (await ask("alerts"))["alerts"] if each["state"] in states}

    async def firing() -> set[str]:
        return await alerts("firing")

    async def values(title: str) -> list[float]:
        (query,) = [text for shown, _, text in panels_of(described()["cluster"]) if shown == title]
        return [
            float(each["value"][1])
            for each in (await ask("query", query=query.replace("$datacenter", "east")))["result"]
        ]

    await wait_until(are_scraped)
    await wait_until(are_evaluated)
    for dashboard in described().values():
        for _, _, query in panels_of(dashboard):
            await ask("query", query=query.replace("$__rate_interval", "5s").replace("$datacenter", "east"))
    assert await values("Brokers down") == [0]
    assert await values("Controllers") == [1]
    assert await values("Without ZooKeeper for") == [0]
    assert await firing() == {"Watchdog"}
    zookeeper.stop()

    async def is_told() -> bool:
        return "ZooKeeperLost" in await firing() and "NotReady" in await alerts("pending")

    await wait_until(is_told)
    assert (await values("Without ZooKeeper for"))[0] > 15
    zookeeper.start()

    async def is_over() -> bool:
        return not await firing() & {"ZooKeeperLost"}

    await wait_until(is_over)
