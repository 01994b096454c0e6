"""Pauses: what a user paused is not copied, by any mirror of the hub, until the user resumes it; its lag stays true."""

from functools import partial
from typing import Any

import pytest
import trio
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.client.admin.offsets import delete_records
from pipeline.client.cluster.cluster import open_cluster
from pipeline.errors import NetworkError
from pipeline.mirror.copying.resume import ResumeRequest
from pipeline.mirror.journals.pauses import Pause, PauseRecordError, Pauses, PauseScope, decode_scope
from pipeline.mirror.pausing import NothingMeantError, PauseRequest
from pipeline.mirror.service import MirrorService
from pipeline.model import HostPort, TopicPartition
from pipeline.net.http.server import http_application, serve_http
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    NOBODY,
    Site,
    make,
    mirror_settings,
    publish,
    read,
    until,
    until_copied,
    until_said,
)

VIEWS = TopicPartition("views", 0)
FLOWS = [
    {"name": "east-clicks", "source": "east", "topics": ["clicks"]},
    {"name": "east-views", "source": "east", "topics": ["views"]},
]


def line(service: MirrorService, topic: str = "clicks", partition: int = 0) -> dict[str, Any]:
    for one in service.status()["sources"]:
        for each in one["partitions"]:
            if (each["topic"], each["partition"]) == (topic, partition):
                found: dict[str, Any] = each
                return found
    return {"state": None, "lag": None}


@pytest.mark.long
async def test_a_paused_partition_is_not_copied_and_its_lag_is_true_also_after_a_restart(site: Site) -> None:
    await make(site.east, partitions=2)
    for partition in (0, 1):
        await publish(site.east, b"0", partition=partition)
    async with site.mirroring() as service:
        for partition in (0, 1):
            await until_copied(site.hub, TopicPartition("clicks", partition), b"0")
        scopes = await service.pausing.pause(PauseRequest(names=["clicks-0"]))
        assert scopes == [PauseScope(source="east", topic="clicks", partition=0)]
        assert line(service)["state"] == "paused"
        for partition in (0, 1):
            await publish(site.east, b"1", b"2", partition=partition)
        await until_copied(site.hub, TopicPartition("clicks", 1), b"0", b"1", b"2")
        await until(lambda: line(service)["lag"] == 2)
        assert line(service, partition=1)["state"] in ("caught_up", "copying")
    async with site.mirroring() as service:
        await publish(site.east, b"3")
        await until(lambda: line(service)["lag"] == 3)
        assert (line(service)["state"], line(service)["error"]) == ("paused", None)
        assert "pipeline mirror resume" in line(service)["advice"]
        assert site.metrics.get_sample_value("mirror_partitions", {"source": "east", "state": "paused"}) == 1
        assert await read(site.hub, CLICKS) == [(0, b"0")]
        await service.pausing.resume(PauseRequest(names=["clicks"]))
        await until_copied(site.hub, CLICKS, b"0", b"1", b"2", b"3")
        await until(lambda: line(service)["state"] == "caught_up")
        assert service.status()["pauses"] == []
        assert site.failures() == 0
    async with site.mirroring() as service:
        await until(lambda: line(service)["state"] == "caught_up")


async def test_a_paused_flow_is_paused_in_all_mirrors_of_the_hub(site: Site) -> None:
    for topic in ("clicks", "views"):
        await make(site.east, topic)
    async with site.mirroring(flows=FLOWS) as first, site.mirroring(flows=FLOWS) as second:
        await until(lambda: line(first, "views")["lag"] == 0 and line(second, "views")["lag"] == 0)
        await first.pausing.pause(PauseRequest(flow="east-views"))
        await until(lambda: line(second, "views")["state"] == "paused")
        await publish(site.east, b"v", topic="views")
        await publish(site.east, b"c")
        await until_copied(site.hub, CLICKS, b"c")
        await until(lambda: line(second, "views")["lag"] == 1)
        assert await read(site.hub, VIEWS) == []
        await second.pausing.resume(PauseRequest(flow="east-views"))
        await until_copied(site.hub, VIEWS, b"v")
        await until(lambda: line(first, "views")["state"] == "caught_up")


async def test_a_topic_that_comes_into_a_paused_flow_is_paused(site: Site) -> None:
    await make(site.east)
    async with site.mirroring(flows=FLOWS) as service:
        await until(lambda: line(service)["lag"] == 0)
        await service.pausing.pause(PauseRequest(flow="east-views"))
        wide = [{"name": "east-views", "source": "east", "topics": [".*"]}]
        version = service.status()["settings"]["version"]
        await service.settings.apply(mirror_settings("east", "west", flows=wide), version)
        assert line(service)["state"] == "paused"
        version = service.status()["settings"]["version"]
        await service.settings.apply(mirror_settings("east", "west", flows=FLOWS), version)
        await publish(site.east, b"a")
        await until_copied(site.hub, CLICKS, b"a")


async def test_new_topics_of_a_paused_source_wait_and_wider_pauses_are_named(site: Site) -> None:
    await make(site.east)
    async with site.mirroring() as service:
        await until(lambda: line(service)["lag"] == 0)
        await service.pausing.pause(PauseRequest(source="east"))
        await make(site.east, "clicks2")
        await publish(site.east, b"new", topic="clicks2")
        await until(lambda: line(service, "clicks2")["lag"] == 1)
        assert line(service, "clicks2")["state"] == "paused"
        with pytest.raises(NothingMeantError, match="paused by the pause of source east: resume --source east"):
            await service.pausing.resume(PauseRequest(names=["clicks2"]))
        await service.pausing.resume(PauseRequest(source="east"))
        await until_copied(site.hub, TopicPartition("clicks2", 0), b"new")


async def test_the_lag_of_a_paused_partition_is_unknown_while_the_source_is_away(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring() as service:
        await until_copied(site.hub, CLICKS, b"a")
        await service.pausing.pause(PauseRequest(names=["clicks"]))
    async with open_cluster(NOBODY) as away:
        site.east = away
        async with site.mirroring() as service:
            await until(lambda: service.status()["sources"][0]["error"] not in (None, "not reached yet"))
            assert line(service)["lag"] is None


@pytest.mark.long
async def test_a_halted_partition_that_is_paused_halts_again_when_it_is_resumed(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"copied")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"copied")
    await publish(site.east, b"lost", b"kept")
    await delete_records(site.east, {CLICKS: 2}, timeout_s=DEADLINE_S)
    async with site.mirroring() as service:
        await until_said(service, "offsets 1 to 1")
        await service.pausing.pause(PauseRequest(names=["clicks"]))
        assert line(service)["state"] == "paused"
        await service.pausing.resume(PauseRequest(names=["clicks"]))
        await until_said(service, "offsets 1 to 1")
        await until(lambda: line(service)["state"] == "halted")
        await service.resumption.resume(ResumeRequest(names=["clicks"], skip=True))
        await until(lambda: line(service)["lag"] == 0)


async def test_names_that_mean_nothing_are_refused_and_a_hub_that_fails_pauses_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(site.east)
    async with site.mirroring() as service:
        await until(lambda: line(service)["lag"] == 0)
        for wrong in (
            PauseRequest(),
            PauseRequest(names=["click"]),
            PauseRequest(names=["clicks", "clicks-1"]),
            PauseRequest(names=["clicks"], source="west"),
            PauseRequest(flow="clicks"),
            PauseRequest(flow="east", source="east"),
            PauseRequest(source="north"),
        ):
            with pytest.raises(NothingMeantError):
                await service.pausing.pause(wrong)
        assert await service.pausing.resume(PauseRequest(names=["clicks"])) == []

        async def fail(*_args: object, **_settings: object) -> None:
            raise NetworkError("the hub is away")

        monkeypatch.setattr("pipeline.mirror.journals.journal_topic.JournalTopic.append", fail)
        with pytest.raises(NetworkError):
            await service.pausing.pause(PauseRequest(names=["clicks"]))
        assert line(service)["state"] == "caught_up"


async def test_commands_pause_show_and_resume(site: Site) -> None:
    await make(site.east)
    async with site.mirroring() as service, trio.open_nursery() as nursery:
        await until(lambda: line(service)["lag"] == 0)
        await until(lambda: all(one["error"] is None for one in service.status()["sources"]))
        routes = http_application([*service.state.routes(), service.resumption.route(), *service.pausing.routes()])
        url = f"http://{await nursery.start(serve_http, routes, HostPort('127.0.0.1', 0))}"

        async def run(*arguments: str) -> tuple[int, str]:
            invoke = partial(CliRunner().invoke, app, ["mirror", *arguments, "--mirror", url])
            shown = await trio.to_thread.run_sync(invoke)
            return shown.exit_code, shown.output

        code, text = await run("resume", "--flow", "east")
        assert (code, "nothing of that name is paused" in text) == (1, True)
        code, text = await run("pause", "clicks-0")
        assert (code, "paused: clicks-0 of east" in text) == (0, True)
        code, text = await run("status")
        assert (code, "1 paused" in text) == (0, True)
        assert "clicks-0 of east" in text
        code, text = await run("pause", "nothing")
        assert (code, "no partition that is mirrored bears the name nothing" in text) == (1, True)
        code, text = await run("resume", "clicks")
        assert (code, "resumed: clicks-0 of east" in text) == (0, True)
        await until(lambda: line(service)["state"] == "caught_up")
        code, text = await run("resume", "clicks")
        assert (code, "nothing to resume: clicks is not halted" in text) == (1, True)
        nursery.cancel_scope.cancel()


def test_records_of_pauses() -> None:
    pauses = Pauses()
    scopes = [
        PauseScope(flow="f.1"),
        PauseScope(source="east"),
        PauseScope(source="east", topic="clicks"),
        PauseScope(source="east", topic="clicks", partition=0),
    ]
    for scope in scopes:
        assert decode_scope(scope.key) == scope
        pauses.apply(*Pause(scope=scope, time_ms=5).encode())
    assert [pause.scope for pause in pauses] == scopes
    found = pauses.covering("east", CLICKS, "f.1")
    assert found is not None
    assert found.scope == scopes[1]
    for scope in scopes[1:]:
        pauses.apply(scope.key, None)
    found = pauses.covering("west", CLICKS, "f.1")
    assert found is not None
    assert found.scope == scopes[0]
    assert pauses.covering("east", CLICKS, "other") is None
    for key, value in (
        (None, b"{}"),
        (b"\xff", b"{}"),
        (b"flow/a b", b"{}"),
        (b"partition/east/clicks/x", b'{"version":1,"time_ms":1}'),
        (b"flow/f", b"no JSON"),
        (b"flow/f", b'{"version":2,"time_ms":1}'),
        (b"flow/f", b'{"version":1,"time_ms":true}'),
        (b"flow/f", b'{"version":1,"time_ms":253402300800000}'),  # commands could show no such time
        (b"flow/f", b'{"version":1,"time_ms":-1}'),
    ):
        with pytest.raises(PauseRecordError):
            pauses.apply(key, value)
    assert len(pauses) == 1
