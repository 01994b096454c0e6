"""Settings of a running mirror: compared with a file, and replaced without a restart."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.cli.terminal.settings import read_settings
from pipeline.client.admin.offsets import delete_records
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.errors import ConfigurationError
from pipeline.mirror.config import MirrorConfig, SourceConfig
from pipeline.mirror.copying.locator import Locator
from pipeline.mirror.live_settings import OutdatedPlanError
from pipeline.mirror.service import MirrorService, run_mirror
from pipeline.model import HostPort, TopicPartition
from pipeline.net.http.server import http_application, serve_http
from tests.support.brokers import clock
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    NOBODY,
    Site,
    make,
    mirror_settings,
    publish,
    settings_of,
    until,
    until_copied,
    until_said,
)

VIEWS = TopicPartition("views", 0)
SOURCES = ("east", "west")


def bootstrap(cluster: Cluster) -> str:
    return ",".join(str(broker.address) for broker in cluster.view.brokers.values())


def flow(name: str, source: str, *topics: str, **settings: str) -> dict[str, Any]:
    return {"name": name, "source": source, "topics": list(topics)} | {
        key.replace("_", "."): value for key, value in settings.items()
    }


EAST_CLICKS = flow("east-clicks", "east", "clicks")


def settings(*flows: dict[str, Any], sources: tuple[str, ...] = SOURCES, **more: Any) -> dict[str, Any]:
    return mirror_settings(*sources, flows=list(flows), **more)


async def apply(service: MirrorService, new: dict[str, Any]) -> dict[str, Any]:
    return await service.settings.apply(new, service.status()["settings"]["version"])


def lines(service: MirrorService, source: str = "east") -> dict[tuple[str, int], dict[str, Any]]:
    return {
        (line["topic"], line["partition"]): line
        for one in service.status()["sources"]
        if one["name"] == source
        for line in one["partitions"]
    }


@pytest.fixture
def located(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The partitions that were located, in order."""
    found: list[str] = []
    locate = Locator._locate

    async def note(self: Locator, consumer: Any, copy: Any) -> None:
        found.append(str(copy.source))
        await locate(self, consumer, copy)

    monkeypatch.setattr(Locator, "_locate", note)
    return found


@pytest.mark.long
async def test_flows_are_added_and_removed_while_others_are_copied(site: Site, located: list[str]) -> None:
    for topic in ("clicks", "views"):
        await make(site.east, topic)
        await publish(site.east, b"0", topic=topic)
    async with site.mirroring(flows=[EAST_CLICKS]) as service, trio.open_nursery() as nursery:
        await until_copied(site.hub, CLICKS, b"0")
        values = [b"%d" % number for number in range(60)]

        async def publish_slowly() -> None:
            for value in values[1:]:
                await publish(site.east, value)
                await trio.sleep(0.005)

        nursery.start_soon(publish_slowly)
        await apply(service, settings(EAST_CLICKS, flow("views", "east", "views", replica_topic="{source}.{topic}")))
        await until_copied(site.hub, TopicPartition("east.views", 0), b"0")
        await apply(service, settings(EAST_CLICKS))
        assert ("views", 0) not in lines(service)
        await publish(site.east, b"after the flow was removed", topic="views")
        await until_copied(site.hub, CLICKS, *values)
        await until_copied(site.hub, TopicPartition("east.views", 0), b"0")
        assert located.count("clicks-0") == 1
        assert located.count("views-0") == 1
        await apply(service, settings(EAST_CLICKS, flow("again", "east", "views")))
        await until_copied(site.hub, TopicPartition("east.views", 0), b"0", b"after the flow was removed")
        (remark,) = next(each for each in service.status()["flows"] if each["name"] == "again")["remarks"]
        assert "its replica is east.views" in remark["remark"]
        assert site.failures() == 0


async def test_sources_are_added_and_removed(site: Site, located: list[str]) -> None:
    for cluster in (site.east, site.west):
        await make(cluster)
    await publish(site.east, b"e")
    await publish(site.west, b"w")
    async with site.mirroring(
        flows=[EAST_CLICKS], sources=settings(EAST_CLICKS, sources=("east",))["sources"], group_offsets_enabled=True
    ) as service:
        await until_copied(site.hub, CLICKS, b"e")
        assert list(service.sources) == ["east"]
        west = flow("west-clicks", "west", "clicks")
        await apply(service, settings(west, EAST_CLICKS, sources=("west", "east"), group_offsets_enabled=True))
        await until_copied(site.hub, TopicPartition("clicks", 1), b"w")
        assert [one["name"] for one in service.status()["sources"]] == ["west", "east"]
        assert (await settings_of(site.hub))["mirror.source"] == "east"
        age = partial(site.metrics.get_sample_value, "mirror_group_offsets_age_seconds", {"source": "east"})
        assert age() is not None
        await apply(service, settings(west, sources=("west",), group_offsets_enabled=True))
        assert age() is None
        await publish(site.east, b"not any more")
        await publish(site.west, b"w2")
        await until_copied(site.hub, TopicPartition("clicks", 1), b"w", b"w2")
        await until_copied(site.hub, CLICKS, b"e")
        assert site.is_up("east") is None
        await apply(service, settings(west, EAST_CLICKS))
        await until_copied(site.hub, CLICKS, b"e", b"not any more")
        assert located == ["clicks-0"] * 3


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
async def test_many_applies_under_load_lose_and_double_nothing(site: Site, seed: int) -> None:
    rng = Random(seed)
    clusters = {"east": site.east, "west": site.west}
    values: dict[str, list[bytes]] = {name: [] for name in SOURCES}
    for cluster in clusters.values():
        await make(cluster)
        await make(cluster, "views")
    all_flows = [
        flow(f"{name}-{topic}", name, topic, replica_topic="{source}.{topic}")
        for name in SOURCES
        for topic in ("clicks", "views")
    ]
    is_over = False

    async def publish_on(name: str) -> None:
        while not is_over:
            values[name].append(b"%s %d" % (name.encode(), len(values[name])))
            await publish(clusters[name], values[name][-1])

    async with (
        site.mirroring(flows=all_flows, refresh_interval_ms=3_600_000) as service,
        trio.open_nursery() as nursery,
    ):
        for name in SOURCES:
            nursery.start_soon(publish_on, name)
        for _ in range(25):
            sources = tuple(rng.sample(SOURCES, rng.randint(1, 2)))
            flows = [each for each in rng.sample(all_flows, rng.randint(1, 4)) if each["source"] in sources]
            new = settings(*flows or [flow("none", sources[0], "none")], sources=sources)
            new["refresh.interval.ms"] = rng.choice((100, 3_600_000))
            for each in new["sources"]:
                each["bootstrap.servers"] = rng.choice(("given:1", "given:2"))
            await apply(service, new)
            await trio.sleep(rng.choice((0, 0, 0.01, 0.1)))
        is_over = True
        await apply(service, settings(*all_flows))
        for name in SOURCES:
            await until_copied(site.hub, TopicPartition(f"{name}.clicks", 0), *values[name])


async def test_a_source_with_other_addresses_is_opened_anew(site: Site, located: list[str]) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring(flows=[EAST_CLICKS]) as service:
        await until_copied(site.hub, CLICKS, b"a")
        new = settings(EAST_CLICKS)
        new["sources"][0]["bootstrap.servers"] = "given:2"
        planned = await service.settings.plan(new)
        assert [(each["name"], each["change"]) for each in planned["sources"]] == [("east", "restart")]
        assert [(each["topic"], each["change"]) for each in planned["topics"]] == [("clicks", "restart")]
        await apply(service, new)
        await publish(site.east, b"b")
        await until_copied(site.hub, CLICKS, b"a", b"b")
        assert located == ["clicks-0"] * 2


async def test_a_plan_names_no_replicas_before_the_table_is_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.mirror.service.PLAN_TIMEOUT_S", 0.5)
    await make(site.east)
    moved = settings(flow("east-clicks", "east", "clicks", replica_topic="{source}.{topic}"))
    async with site.mirroring(flows=[EAST_CLICKS]):
        await publish(site.east, b"a")
        await until_copied(site.hub, CLICKS, b"a")
    async with open_cluster(NOBODY) as away:
        site.hub = away
        async with site.mirroring(flows=[EAST_CLICKS]) as service:
            planned = await service.settings.plan(moved)
            assert planned["topics"] == []
            assert planned["unknown_sources"].keys() == {"east", "west"}
            assert "partition table has not been read yet" in planned["unknown_sources"]["east"]


async def test_a_plan_names_what_would_change_and_changes_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.mirror.service.PLAN_TIMEOUT_S", 0.5)
    await make(site.east, partitions=2)
    await make(site.east, "views", partitions=3)
    await make(site.east, "orders")
    both = [flow("all", "east", "clicks", "orders")]
    async with open_cluster(NOBODY) as away:
        site.west = away
        async with site.mirroring(flows=both, sources=settings(*both, sources=("east",))["sources"]) as service:
            await until(lambda: len(lines(service)) == 3)
            same = await service.settings.plan(settings(*both, sources=("east",)))
            assert (same["is_same"], same["topics"], same["flows"]) == (True, [], [])
            new = [
                flow("all", "east", "clicks", replica_topic="{source}.{topic}", gap_policy="skip"),
                flow("more", "east", "views"),
            ]
            planned = await service.settings.plan(settings(*new, refresh_interval_ms=200))
            assert planned["version"] == service.status()["settings"]["version"]
            assert not planned["is_same"]
            assert planned["settings"] == [{"setting": "refresh.interval.ms", "running": 100, "new": 200}]
            assert [(each["name"], each["change"]) for each in planned["sources"]] == [("west", "add")]
            assert "west" in planned["unknown_sources"]
            changed, added = planned["flows"]
            assert [each["setting"] for each in changed["settings"]] == ["topics", "replica.topic", "gap.policy"]
            assert (added["name"], added["change"]) == ("more", "add")
            assert [(each["topic"], each["change"], each["partitions"]) for each in planned["topics"]] == [
                ("clicks", "keep", 2),
                ("orders", "stop", 1),
                ("views", "start", 3),
            ]
            assert "keeps its replica clicks" in planned["topics"][0]["remark"]
            assert len(lines(service)) == 3
            assert list(service.sources) == ["east"]


async def test_a_refused_apply_changes_nothing(site: Site, located: list[str]) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring(flows=[EAST_CLICKS]) as service:
        await until_copied(site.hub, CLICKS, b"a")
        version = service.status()["settings"]["version"]
        views = flow("views", "east", "views")
        wrong = {
            "http.listen": settings(views, http_listen="127.0.0.1:1"),
            "destination.bootstrap.servers": settings(views) | {"destination.bootstrap.servers": "other:1"},
            "mirror.group": settings(views, mirror_group="other"),
            "flows.1.topics": settings(EAST_CLICKS, flow("broken", "east", "(")),
            "groups": settings(views, groups=["("]),
            "refresh.interval.ms": settings(views, refresh_interval_ms=1),
        }
        for key, new in wrong.items():
            with pytest.raises(ConfigurationError) as caught:
                await service.settings.apply(new, version)
            assert caught.value.key == key
        with pytest.raises(OutdatedPlanError, match="somebody else has changed them"):
            await service.settings.apply(settings(views), "0123456789abcdef")
        assert service.status()["settings"]["version"] == version
        await publish(site.east, b"b")
        await until_copied(site.hub, CLICKS, b"a", b"b")
        assert located == ["clicks-0"]


async def test_of_two_operators_the_second_one_is_refused(site: Site) -> None:
    async with site.mirroring(flows=[EAST_CLICKS]) as service:
        version = service.status()["settings"]["version"]
        outcomes: list[str] = []

        async def apply_as(name: str) -> None:
            try:
                await service.settings.apply(settings(EAST_CLICKS, flow(name, "west", "clicks")), version)
                outcomes.append("applied")
            except OutdatedPlanError:
                outcomes.append("refused")

        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                nursery.start_soon(apply_as, name)
        assert sorted(outcomes) == ["applied", "refused"]
        assert len(service.status()["flows"]) == 2


async def test_a_gap_policy_is_changed_for_a_halted_partition(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"copied")
    async with site.mirroring(flows=[EAST_CLICKS]):
        await until_copied(site.hub, CLICKS, b"copied")
    await publish(site.east, b"lost", b"kept")
    await delete_records(site.east, {CLICKS: 2}, timeout_s=DEADLINE_S)
    async with site.mirroring(flows=[EAST_CLICKS], refresh_interval_ms=3_600_000) as service:
        await until_said(service, "offsets 1 to 1")
        skipping = flow("east-clicks", "east", "clicks", gap_policy="skip")
        await apply(service, settings(skipping, refresh_interval_ms=3_600_000))
        await until(lambda: lines(service)["clicks", 0]["lag"] == 0)
        assert [(gap.first, gap.last) for gap in service.gaps.ledger] == [(1, 1)]


async def test_intervals_groups_and_followed_settings_are_changed(site: Site, located: list[str]) -> None:
    await make(site.east)
    quiet: dict[str, Any] = {"refresh_interval_ms": 3_600_000, "topic_settings_interval_ms": 3_600_000}
    async with site.mirroring(flows=[EAST_CLICKS], topic_settings=[], **quiet) as service:
        await until(lambda: ("clicks", 0) in lines(service))
        assert service.status()["sources"][0]["groups"] is None
        await apply(service, settings(EAST_CLICKS, group_offsets_enabled=True, fetch_max_bytes=2048))
        await until(lambda: (service.status()["sources"][0]["groups"] or {}).get("error", "") is None)
        await make(site.east, "clicks2", retention_ms="777000")
        await apply(service, settings(flow("east-clicks", "east", "clicks.*"), fetch_max_bytes=2048))
        await publish(site.east, b"x" * 5000, topic="clicks2")
        await until_copied(site.hub, TopicPartition("clicks2", 0), b"x" * 5000)
        assert (await settings_of(site.hub, "clicks2"))["retention.ms"] == "777000"
        assert service.status()["sources"][0]["groups"] is None
        assert located == ["clicks-0", "clicks2-0"]


async def test_the_status_tells_whether_a_restart_would_change_the_settings(site: Site) -> None:
    in_file = mirror_settings("east", "west")
    wrong = False

    def read_file() -> dict[str, Any]:
        if wrong:
            raise ConfigurationError("mirror.toml", "cannot be read: Permission denied")
        return in_file

    async with site.mirroring(read_file=read_file) as service:
        new = mirror_settings("east", "west", refresh_interval_ms=300)
        assert (await apply(service, new))["is_of_file"] is False
        assert service.status()["settings"]["is_of_file"] is False
        assert site.metrics.get_sample_value("mirror_settings_of_file") == 0
        in_file = new
        assert (await apply(service, new)) == {
            "version": service.status()["settings"]["version"],
            "is_of_file": True,
            "is_changed": False,
        }
        wrong = True
        assert (await apply(service, new))["is_of_file"] is None
        assert "Permission denied" in service.status()["settings"]["file_error"]


@asynccontextmanager
async def serving(service: MirrorService) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        routes = http_application([*service.state.routes(), *service.settings.routes()])
        yield f"http://{await nursery.start(serve_http, routes, HostPort('127.0.0.1', 0))}"
        nursery.cancel_scope.cancel()


async def test_a_mirror_by_addresses_takes_a_source_and_a_flow_and_tells_what_a_restart_would_do(
    site: Site, tmp_path: Path
) -> None:
    def write(path: Path, *sources: Cluster) -> Path:
        listed = "".join(
            f'[[sources]]\nname = "{name}"\nbootstrap.servers = "{bootstrap(cluster)}"\n'
            f'[[flows]]\nname = "{name}"\nsource = "{name}"\ntopics = ["clicks"]\n'
            for name, cluster in zip(SOURCES, sources, strict=False)
        )
        hub = f'destination.bootstrap.servers = "{bootstrap(site.hub)}"\n'
        path.write_text(f'{hub}http.listen = "127.0.0.1:0"\nrefresh.interval.ms = 100\n{listed}')
        return path

    for cluster, value in ((site.east, b"e"), (site.west, b"w")):
        await make(cluster)
        await publish(cluster, value)
    await site.hub.refresh()
    own = write(tmp_path / "own.toml", site.east)
    both = write(tmp_path / "both.toml", site.east, site.west)

    def connect(source: SourceConfig) -> AbstractAsyncContextManager[Cluster]:
        return open_cluster(ClientConfig(bootstrap=source.bootstrap))

    async def command(*arguments: str) -> tuple[int, str]:
        shown = await trio.to_thread.run_sync(CliRunner().invoke, app, ["mirror", *arguments, "--mirror", url])
        return shown.exit_code, shown.output

    async with trio.open_nursery() as nursery:
        url = await nursery.start(
            partial(
                run_mirror,
                MirrorConfig.from_settings(read_settings(own)),
                connect,
                site.hub,
                clock=clock,
                rng=Random(1),
                metrics=CollectorRegistry(),
                read_file=partial(read_settings, own),
            )
        )
        url = str(url)
        await until_copied(site.hub, CLICKS, b"e")
        code, text = await command("plan", "--config", str(both))
        assert (code, "source west: add" in text, "flow west: add" in text) == (1, True, True)
        code, text = await command("apply", "--config", str(both))
        assert (code, "The file that the mirror was started with has other settings" in text) == (0, True)
        await until_copied(site.hub, TopicPartition("clicks", 1), b"w")
        assert "which a restart would put in force" in (await command("status"))[1]
        code, text = await command("apply", "--config", str(own))
        assert (code, "has other settings" in text) == (0, False)
        await publish(site.west, b"not any more")
        await publish(site.east, b"e2")
        await until_copied(site.hub, CLICKS, b"e", b"e2")
        await until_copied(site.hub, TopicPartition("clicks", 1), b"w")
        nursery.cancel_scope.cancel()


TOML = """
destination.bootstrap.servers = "given:1"
http.listen = "127.0.0.1:0"
refresh.interval.ms = 100
retry.backoff.ms = 20
fetch.max.wait.ms = 50
produce.timeout.ms = 1000
topics = ["clicks.*"{more}]
sources = [{{ name = "east", bootstrap.servers = "given:1" }}, {{ name = "west", bootstrap.servers = "given:1" }}]
"""


async def test_commands_plan_and_apply_a_file(site: Site, tmp_path: Path) -> None:
    await make(site.east, "views")
    await publish(site.east, b"v", topic="views")
    running, wanted = tmp_path / "running.toml", tmp_path / "wanted.toml"
    running.write_text(TOML.format(more=""))
    wanted.write_text(TOML.format(more=', "views"'))

    async def run(*arguments: str) -> tuple[int, str]:
        invoke = partial(CliRunner().invoke, app, ["mirror", *arguments, "--mirror", url])
        shown = await trio.to_thread.run_sync(invoke)
        return shown.exit_code, shown.output

    async with site.mirroring() as service, serving(service) as url:
        code, text = await run("plan", "--config", str(running))
        assert (code, "no differences" in text) == (0, True)
        code, text = await run("plan", "--config", str(wanted))
        assert (code, "start" in text, "views" in text) == (1, True, True)
        assert "flow east: change (topics: clicks.* -> clicks.*,views)" in text
        code, text = await run("plan", "--config", str(wanted), "--json")
        version = next(json.loads(line) for line in text.splitlines() if line.startswith("{"))["version"]
        code, text = await run("apply", "--config", str(wanted), "--version", "feed")
        assert (code, "nothing was applied" in text) == (1, True)
        code, text = await run("apply", "--config", str(wanted), "--version", version)
        assert (code, "applied: version" in text) == (0, True)
        await until_copied(site.hub, VIEWS, b"v")
        assert (await run("plan", "--config", str(wanted)))[0] == 0
        wrong = tmp_path / "wrong.toml"
        wrong.write_text(TOML.format(more="").replace("127.0.0.1:0", "127.0.0.1:5"))
        code, text = await run("apply", "--config", str(wrong))
        assert (code, "restart the mirror" in text) == (1, True)
        assert "needs a restart: http.listen: 127.0.0.1:0 -> 127.0.0.1:5" in text
