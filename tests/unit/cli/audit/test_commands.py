"""The commands of the audit against its real API over real counts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner, Result

from pipeline.audit.api import API_ROLES
from pipeline.audit.reports.parameters import MAX_NAMES
from pipeline.cli.audit.report import MOST_TOPICS
from pipeline.cli.audit.watch import _print_changes, letters_of, status_table
from pipeline.cli.main import app
from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.net.http.security import HttpSecurity
from pipeline.net.http.server import serve_http
from pipeline.net.http.service import HttpService, serve_service
from pipeline.records.tally import HOUR_MS
from tests.support.audit_site import AuditSite
from tests.support.audited_way import GRACE_MS, HOUR, NOW_MS, Amounts, WholeWay, signs
from tests.support.secured_http import PASSWORDS, http_files

NAME = "1970-02-11T16:00:00Z"
LOST = "1970-02-11T15:00:00Z"
DEADLINE_S = 60


@pytest.fixture
def site() -> AuditSite:
    site = AuditSite()
    site.apply([*WholeWay().reports(), *signs()])
    site.read_all()
    return site


def lose(site: AuditSite) -> None:
    """Count an hour of which the hub lacks two records."""
    less = Amounts(records=8, content=1_000)
    old: dict[str, Any] = {"created_ms": NOW_MS - 2 * GRACE_MS, "end": 200}
    way = WholeWay(
        replica=less,
        loaded=less,
        hour_ms=HOUR - HOUR_MS,
        producer_options={"created_ms": NOW_MS - 2 * GRACE_MS},
        live_options=old,
        replica_options=old,
        load_options=old,
    )
    site.apply(way.reports())


@asynccontextmanager
async def serving(site: AuditSite) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(site.judgements.run)
        address: HostPort = await nursery.start(serve_http, site.application, HostPort("127.0.0.1", 0))
        yield f"http://{address}"
        nursery.cancel_scope.cancel()


async def test_a_command_logs_in_at_an_audit_with_users(
    site: AuditSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_CLIENT_CONFIG", "")  # the option sets it, for this test alone
    files = http_files(tmp_path)
    service = HttpService(name="audit", routes=site.api.routes(), roles=API_ROLES, metrics=CollectorRegistry())
    config = tmp_path / "client.properties"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(site.judgements.run)
        security = HttpSecurity.from_settings(files.settings)
        url = f"https://{await nursery.start(serve_service, service, HostPort('127.0.0.1', 0), security)}"
        for shown, trust, code, said in (
            (PASSWORDS["reader"], files.ca, 0, "1 of 1 hour exact."),
            ("wrong", files.ca, 1, "answers 401: the password or token is not right"),
            (PASSWORDS["reader"], None, 1, "nobody who is trusted has signed"),
        ):
            trusted = f"ssl.ca.location={trust}" if trust else ""
            config.write_text(f"basic.auth.user.info=reader:{shown}\n{trusted}\n")
            done = await call("report", "--audit", url, "--client-config", str(config))
            assert (done.exit_code, said in done.output) == (code, True), done.output
            assert shown not in done.output
        nursery.cancel_scope.cancel()


async def call(*arguments: str) -> Result:
    done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(app, ["audit", *arguments]))
    if isinstance(done.exception, ConfigurationError):
        done.exit_code = 2  # as `main` does
    return done


async def test_the_exit_code_says_exact_difference_or_unknown(site: AuditSite) -> None:
    async with serving(site) as url:
        done = await call("report", "--audit", url)
        assert done.exit_code == 0, done.output
        assert NAME in done.output
        assert "1 of 1 hour exact." in done.output
        assert (await call("report", "--audit", url, "--topic", "typo")).exit_code == 5
        site.collector.states["hub"].fail("gone")
        lose(site)
        bounded = ("--from", NAME, "--to", "1970-02-11T17:00")
        assert (await call("report", "--audit", url, *bounded, "--json")).exit_code == 0
        with trio.fail_after(DEADLINE_S):
            while (later := await call("report", "--audit", url)).exit_code != 4:
                await trio.sleep(0.05)  # a judgement may be a second old
        assert "hub: gone" in later.output


async def test_a_report_as_csv_and_as_json(site: AuditSite) -> None:
    async with serving(site) as url:
        done = await call("report", "--audit", url, "--csv")
        assert done.stdout.splitlines()[0].startswith("topic,hour,status,kind,produced,live,replica,loaded")
        assert done.stdout.splitlines()[1].startswith(f"clicks,{NAME},exact,,10,10,10,10")
        done = await call("report", "--audit", url, "--json")
        assert json.loads(done.stdout)["verdict"] == "exact"
        assert (await call("report", "--audit", url, "--json", "--csv")).exit_code == 2
        assert (await call("report", "--audit", url, "--from", "yesterday")).exit_code == 2


async def test_a_topic_that_nobody_counted_is_told_beside_those_that_are_exact(site: AuditSite) -> None:
    async with serving(site) as url:
        both = ("--audit", url, "--topic", "clicks", "--topic", "typo")
        done = await call("report", *both)
        assert (done.exit_code, "No counts yet for topic typo." in done.output) == (5, True), done.output
        done = await call("report", *both, "--csv")
        assert (done.exit_code, "No counts yet for topic typo." in done.stderr) == (5, True)
        done = await call("daily", *both, "--day", "1970-02-11", "--format", "markdown")
        assert (done.exit_code, "typo: nothing was counted" in done.output) == (5, True), done.output
        lose(site)
        with trio.fail_after(DEADLINE_S):
            while (await call("report", *both)).exit_code != 4:
                await trio.sleep(0.05)  # a judgement may be a second old


async def test_hours_that_csv_leaves_out_are_told_beside_it(site: AuditSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.cli.audit.report.MOST_HOURS", 1)
    lose(site)
    async with serving(site) as url:
        done = await call("report", "--audit", url, "--csv")
    assert [line.split(",")[2] for line in done.stdout.splitlines()] == ["status", "missing"]
    assert "Hours that are not shown: 1 exact." in done.stderr


async def test_a_service_that_is_not_there_is_exit_code_1() -> None:
    for arguments in (["report"], ["explain", "clicks", NAME], ["daily"]):
        done = await call(*arguments, "--audit", "http://127.0.0.1:1")
        assert done.exit_code == 1, done.output
        assert "cannot be reached" in done.output


async def test_an_hour_is_explained_in_sentences(site: AuditSite) -> None:
    lose(site)
    async with serving(site) as url:
        done = await call("explain", "clicks", LOST, "--audit", url, "--narrow")
        assert done.exit_code == 4
        assert "east clicks-0" in done.output
        assert "found: " in done.output
        done = await call("explain", "clicks", "2026-01-01T00:00:00Z", "--audit", url)
        assert done.output == "pipeline: the audit has no counts of topic 'clicks' in that hour\n"
        assert done.exit_code == 1
        done = await call("explain", "typo", NAME, "--audit", url)
        assert done.exit_code == 1
        assert "no counts of topic" in done.output


async def test_a_daily_report_is_one_file(site: AuditSite, tmp_path: Path) -> None:
    lose(site)
    async with serving(site) as url:
        page, text = tmp_path / "day.html", tmp_path / "day.md"
        day = ("--day", "1970-02-11", "--audit", url)
        assert (await call("daily", *day, "--out", str(page))).exit_code == 4
        assert (await call("daily", *day, "--format", "markdown", "--out", str(text))).exit_code == 4
        assert "<title>Audit of 1970-02-11</title>" in page.read_text()
        assert "`...............-e.......`" in text.read_text()
        assert (await call("daily", "--audit", url, "--day", "1970-02-10")).exit_code == 5
        assert (await call("daily", "--audit", url, "--day", "soon")).exit_code == 2
        assert (await call("daily", *day, "--out", str(tmp_path / "no" / "day.html"))).exit_code == 1
    assert names_in(tmp_path) == ["day.html", "day.md"]


async def test_changes_are_lines_in_a_pipe_and_an_absent_service_is_told(site: AuditSite) -> None:
    async with serving(site) as url:
        command = [sys.executable, "-m", "pipeline", "audit", "watch", "--audit", url, "--interval", "0.1"]
        child = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            lose(site)
            assert child.stdout is not None
            lines = await read_until(child.stdout, lambda text: "  east clicks-0" in text)
        finally:
            os.kill(child.pid, signal.SIGINT)
            code = await child.wait()
    assert f" clicks {LOST} missing\n" in lines
    assert NAME not in lines  # it is exact
    assert code in (130, -signal.SIGINT)


def test_topics_that_a_status_leaves_out_are_told_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {"topics": [], "from_ms": 0, "hour_ms": HOUR_MS, "topics_left_out": 3}
    answers = iter([document, document])
    monkeypatch.setattr("pipeline.cli.audit.watch.fetch_audit_document", lambda *_: next(answers))
    monkeypatch.setattr("pipeline.cli.audit.watch.time.sleep", lambda _: None)
    with pytest.raises(StopIteration):
        _print_changes("http://audit", "http://audit/v1/status", 1, json=False)
    assert capsys.readouterr().err == "changes of 3 more topics are not shown: --topic chooses\n"


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def read_until(stream: trio.abc.ReceiveStream, condition: Callable[[str], bool]) -> str:
    text = ""
    with trio.fail_after(DEADLINE_S):
        while not condition(text):
            text += (await stream.receive_some()).decode()
    return text


def test_a_table_has_the_newest_hours_of_each_topic() -> None:
    document = {
        "verdict": "unknown",
        "judged_ms": NOW_MS,
        "from_ms": HOUR - 29 * HOUR_MS,
        "hours": 30,
        "hour_ms": HOUR_MS,
        "topics": [{"topic": "clicks", "start": 27, "letters": "e-p", "complete_to": None, "waits_for": "the broker"}],
        "topics_left_out": 2,
        "clusters": {"east": {"error": "gone\x1b"}},
        "unknown": [],
    }
    shown = status_table(document, NOW_MS)
    assert "clicks  .....................e-p" in shown
    assert "and 2 more topics" in shown
    assert "\x1b" not in shown
    assert {(hour.start_ms - HOUR) // HOUR_MS: letter for hour, letter in letters_of(document).items()} == {
        -2: "e", -1: "-", 0: "p",
    }  # fmt: skip


def http_answer(body: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), size, body)


@asynccontextmanager
async def answering(content: bytes) -> AsyncIterator[str]:
    """A service that answers each request with these bytes, and closes."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some(65_536)
        await stream.send_all(content)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        yield "http://{}:{}".format(*listener.socket.getsockname())
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (http_answer(b"{}"), "another service"),
        (http_answer(b"[]"), "another service"),
        (http_answer(b"null"), "another service"),
        (http_answer(b'{"exact":true,"verdict":"exact","sentences":7,"hours":7}'), "another service"),
        (http_answer(b"[" * 100_000), "another service"),
        (http_answer(b"\xff\xfe"), "another service"),
        (http_answer(b'{"verdict":"exact"', length=1_000), "cannot be read"),
        (http_answer(b'{"error":"the audit is busy"}', "503 Busy"), "the audit is busy"),
        (http_answer(b'{"err', "503 Busy", 1_000), "answers 503"),
    ],
    ids=lambda value: None if isinstance(value, str) else f"{value[-30:]!a}",
)
async def test_an_answer_that_is_no_document_is_exit_code_1_and_a_sentence(content: bytes, reason: str) -> None:
    async with answering(content) as url:
        for arguments in (["report"], ["report", "--csv"], ["explain", "clicks", NAME], ["daily"]):
            done = await call(*arguments, "--audit", url)
            assert isinstance(done.exception, SystemExit), done.exception
            assert (done.exit_code, reason in done.output) == (1, True), done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "--topic", "\udcff"],
        ["explain", "\udcff", NAME],
        ["watch", "--topic", "\udcff"],
        ["report", "--from", NAME, "--to", NAME],
        ["report", "--from", "2026-11-02", "--to", "2026-11-01"],
        ["report", "--wait", "nan"],
        ["watch", "--interval", "nan"],
        ["daily", "--topic", "\udcff"],
        ["daily", "--day", "9999-12-31"],
        ["explain", "clicks", ""],
        ["explain", "clicks", "1" * 30],
        ["explain", "clicks", "0001-01-01T00:00+14:00"],
        ["report", *(argument for number in range(MOST_TOPICS + 1) for argument in ("--topic", f"t{number}"))],
    ],
    ids=lambda arguments: " ".join(arguments)[:40],
)
async def test_what_cannot_be_asked_is_wrong_usage(arguments: list[str]) -> None:
    done = await call(*arguments, "--audit", "http://127.0.0.1:1")
    assert done.exit_code == 2, (done.output, done.exception)


async def test_as_many_topics_may_be_named_as_the_service_takes(site: AuditSite) -> None:
    assert MOST_TOPICS == MAX_NAMES
    topics = [argument for number in range(MOST_TOPICS) for argument in ("--topic", f"t{number}")]
    async with serving(site) as url:
        done = await call("report", "--audit", url, *topics)
        assert done.exit_code == 5, done.output
        assert (await call("explain", "a/b ?#\x00", "9999-12-31T23:59:59-23:59", "--audit", url)).exit_code == 1
