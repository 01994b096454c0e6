"""Resumption over HTTP, and the commands `mirror resume` and `mirror gaps`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import trio
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.client.admin.offsets import delete_records
from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.resume import MAX_BODY_BYTES
from pipeline.model import HostPort
from pipeline.net.http import http_application, serve_http
from tests.support.mirrors import CLICKS, DEADLINE_S, Site, make, publish, until_copied, until_said


@asynccontextmanager
async def halted(site: Site) -> AsyncIterator[str]:
    """A mirror whose only partition lacks offset 1; gives its URL."""
    await make(site.east)
    await publish(site.east, b"0")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"0")
    await publish(site.east, b"1", b"2")
    await delete_records(site.east, {CLICKS: 2}, timeout_s=DEADLINE_S)
    async with site.mirroring() as service, trio.open_nursery() as nursery:
        await until_said(service, "offsets 1 to 1")
        routes = http_application([service.resumption.route()])
        address = await nursery.start(serve_http, routes, HostPort("127.0.0.1", 0))
        yield f"http://{address}"
        nursery.cancel_scope.cancel()


async def run(*arguments: str) -> tuple[int, str]:
    shown = await trio.to_thread.run_sync(CliRunner().invoke, app, list(arguments))
    return shown.exit_code, shown.output


def json_in(text: str) -> Any:
    """The document among the log lines of the mirror, which writes to the same stdout meanwhile."""
    return next(json.loads(line) for line in text.splitlines() if line.startswith("{"))


def bootstrap(cluster: Cluster) -> str:
    return ",".join(str(broker.address) for broker in cluster.view.brokers.values())


async def test_a_gap_is_shown_skipped_and_listed(site: Site) -> None:
    async with halted(site) as url:
        code, text = await run("mirror", "resume", "--mirror", url, "clicks")
        assert code == 1
        assert "retention" in text
        assert "nothing was skipped; to record these gaps and continue behind them, add --skip" in text
        hub = bootstrap(site.hub)
        assert json_in((await run("mirror", "gaps", "-b", hub, "--json"))[1])["gaps"] == []
        code, text = await run("mirror", "resume", "--mirror", url, "--skip", "--source", "east", "clicks-0", "--json")
        assert code == 0
        (skipped,) = json_in(text)["gaps"]
        assert (skipped["first"], skipped["last"]) == (1, 1)
        code, text = await run("mirror", "gaps", "-b", hub, "--json", "--topic", "clicks", "--source", "east")
        assert json_in(text) == {"gaps": [{**skipped, "missing_at_most": 1}], "unreadable_records": 0}
        code, text = await run("mirror", "gaps", "-b", hub)
        assert (code, "MISSING-AT-MOST" in text, "clicks-0" in text) == (0, True, True)
        assert "clicks-0" not in (await run("mirror", "gaps", "-b", hub, "--topic", "views"))[1]
        assert "clicks-0" not in (await run("mirror", "gaps", "-b", hub, "--source", "west"))[1]


async def test_a_name_that_is_not_halted_is_refused_and_nothing_is_skipped(site: Site) -> None:
    async with halted(site) as url:
        code, text = await run("mirror", "resume", "--mirror", url, "--skip", "clicks", "views")
        assert code == 1
        assert "no partition that is mirrored bears the name views" in text
        assert json.loads((await run("mirror", "gaps", "-b", bootstrap(site.hub), "--json"))[1])["gaps"] == []


async def test_requests_that_a_page_of_another_origin_can_send_are_refused(site: Site) -> None:
    document: dict[str, Any] = {"names": ["clicks"], "skip": True}
    misshapen: list[Any] = [{}, [], {"names": []}, {"names": [1]}, {**document, "skip": "yes"}, {**document, "more": 1}]
    async with halted(site) as url, httpx.AsyncClient(trust_env=False) as client:
        for kind in (
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "text/plain; a=application/json",
        ):
            answer = await client.post(f"{url}/v1/resume", content=json.dumps(document), headers={"Content-Type": kind})
            assert answer.status_code == 415
        assert (await client.post(f"{url}/v1/resume", content=json.dumps(document))).status_code == 415
        assert (await client.get(f"{url}/v1/resume")).status_code == 405
        for wrong in misshapen:
            assert (await client.post(f"{url}/v1/resume", json=wrong)).status_code == 400
        large = await client.post(f"{url}/v1/resume", json={"names": ["x" * MAX_BODY_BYTES]})
        assert large.status_code == 413
    assert json.loads((await run("mirror", "gaps", "-b", bootstrap(site.hub), "--json"))[1])["gaps"] == []
