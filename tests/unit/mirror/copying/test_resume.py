"""Resumption over HTTP, and the commands `mirror resume` and `mirror gaps`."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from uuid import UUID

import httpx
import pytest
import trio
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.client.admin.offsets import delete_records
from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying.copies import SourceCopies
from pipeline.mirror.copying.resume import ResumeRequest, Resumption
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.gaps import GAPS_TOPIC, GapReason, gap_of
from pipeline.mirror.journals.pauses import Pauses
from pipeline.mirror.journals.table import Assignment, SourcePartition
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.topics.flows import SourceFlows
from pipeline.model import HostPort, TopicPartition
from pipeline.net.http.json_body import MAX_BODY_BYTES
from pipeline.net.http.server import http_application, serve_http
from tests.support.brokers import clock
from tests.support.mirrors import CLICKS, DEADLINE_S, Site, make, mirror_settings, publish, until_copied, until_said


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
        routes = http_application([service.resumption.route(), *service.pausing.routes()])
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
        assert json_in(text) == {
            "gaps": [{**skipped, "missing_at_most": 1}],
            "unreadable_records": 0,
            "ledger_begins_at": 0,
        }
        code, text = await run("mirror", "gaps", "-b", hub)
        assert (code, "MISSING-AT-MOST" in text, "clicks-0" in text) == (0, True, True)
        assert "clicks-0" not in (await run("mirror", "gaps", "-b", hub, "--topic", "views"))[1]
        assert "clicks-0" not in (await run("mirror", "gaps", "-b", hub, "--source", "west"))[1]


async def test_a_ledger_without_its_first_records_is_not_shown_as_complete(site: Site) -> None:
    await site.hub.refresh()
    hub = bootstrap(site.hub)
    assert "The hub has no ledger" in (await run("mirror", "gaps", "-b", hub))[1]
    async with halted(site) as url:
        assert (await run("mirror", "resume", "--mirror", url, "--skip", "clicks"))[0] == 0
        await delete_records(site.hub, {TopicPartition(GAPS_TOPIC, 0): 1}, timeout_s=DEADLINE_S)
        assert "its records before offset 1 were deleted" in (await run("mirror", "gaps", "-b", hub))[1]


async def test_thousands_of_halted_partitions_are_found_at_once(site: Site) -> None:
    config = MirrorConfig.from_settings(mirror_settings("east"))
    copies = SourceCopies("east", SourceFlows(()), MirrorMetrics(CollectorRegistry()), CurrentConfig(config), Pauses())
    names = [TopicPartition(topic, number) for topic in ("clicks", "views") for number in range(4000)]
    for each in names:
        source = SourcePartition(cluster="east", partition=each, topic_id=UUID(int=1))
        assignment = Assignment(source=source, replica=each)
        copies.assign(assignment)
        copies.states[each].halt = gap_of(assignment, 1, 2, GapReason.RETENTION, now_ms=1)
    resumption = Resumption(lambda: [copies], GapJournal(site.hub, clock=clock, rng=Random(1)), clock=clock)
    began = time.thread_time()
    gaps = await resumption.resume(ResumeRequest(names=["clicks", "views", *map(str, names)]))
    assert [(gap["topic"], gap["partition"]) for gap in gaps] == names
    assert time.thread_time() - began < 5


async def test_a_name_that_is_not_halted_is_refused_and_nothing_is_skipped(site: Site) -> None:
    async with halted(site) as url:
        code, text = await run("mirror", "resume", "--mirror", url, "--skip", "clicks", "views")
        assert code == 1
        assert "no partition that is mirrored bears the name views" in text
        for wrong in (["--flow", "west", "clicks"], [], ["--source", "east"]):
            code, text = await run("mirror", "resume", "--mirror", url, "--skip", *wrong)
            assert (code, "needs the names of halted topics or partitions" in text) == (2, True)
        assert json_in((await run("mirror", "gaps", "-b", bootstrap(site.hub), "--json"))[1])["gaps"] == []


async def test_a_client_that_leaves_in_the_middle_of_a_request_fills_no_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async with halted(site) as url, httpx.AsyncClient(trust_env=False) as client:
        host, _, port = url.removeprefix("http://").partition(":")
        head = b"POST /v1/resume HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        for _ in range(3):
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(head)
        for _ in range(3):  # the server has seen the others leave before it answers
            assert (await client.post(f"{url}/v1/resume", json={})).status_code == 400
            await trio.sleep(0.05)
    assert [record for record in caplog.records if record.name == "pipeline.net.http.server"] == []


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
        packed = {"Content-Encoding": "gzip"}
        assert (await client.post(f"{url}/v1/resume", json=document, headers=packed)).status_code == 415
        page = {"Origin": url}  # of this origin, too: a page can have its own name lead to this address
        refused = await client.post(f"{url}/v1/resume", json=document, headers=page)
        assert (refused.status_code, "`pipeline` commands" in refused.text) == (403, True)
        assert (await client.get(f"{url}/v1/resume")).status_code == 405
        for wrong in misshapen:
            assert (await client.post(f"{url}/v1/resume", json=wrong)).status_code == 400
        large = await client.post(f"{url}/v1/resume", json={"names": ["x" * MAX_BODY_BYTES]})
        assert large.status_code == 413
    assert json.loads((await run("mirror", "gaps", "-b", bootstrap(site.hub), "--json"))[1])["gaps"] == []
