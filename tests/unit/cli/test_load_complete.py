"""`pipeline load complete` and `hours`: what they say, their JSON and exit codes."""

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from pipeline.audit.counting.load_rows import name_of_root
from pipeline.cli import foreground
from pipeline.cli.load import run
from pipeline.cli.load.complete import Marking
from pipeline.hadoop.commit.layout import topic_layout
from pipeline.hadoop.commit.publication import commit, read_head
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load.config import LoadsConfig
from pipeline.hadoop.load.job import NOTHING_NEW
from pipeline.hadoop.load.many import TopicResult
from pipeline.records.tally import Counts
from tests.support.http_answers import as_json, http_server
from tests.support.manifests import manifest_after

HOUR_MS = 1_767_261_600_000
NAME = "2026-01-01T10:00:00Z"
QUESTION = "/v1/report?topic=clicks"
SUMS = {"records": 10, "bytes": 700, "batches": 2, "crc_sum": 77}
LOST = {"text": "east clicks-0: live: 1 records that were produced are missing"}


@pytest.fixture
def call(pipeline_command: Callable[..., Any]) -> Callable[..., Any]:
    return partial(pipeline_command, "load")


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    files, layout = LocalFileSystem(), topic_layout(str(tmp_path), "clicks")
    head = read_head(files, layout)
    commit(files, layout, replace(manifest_after(head), counts={(0, HOUR_MS): Counts(10, 700, 2, 77)}), head)
    return ["--topic", "clicks", "--root", str(tmp_path)]


def report(status: str = "exact", **stages: Any) -> Any:
    found = dict.fromkeys(("produced", "live", "replica", "loaded"), SUMS) | stages
    findings = [] if status == "exact" else [LOST]
    hour = {"topic": "clicks", "hour": NAME, "status": status, "stages": found, "findings": findings}
    cluster = {"complete": True, "error": None, "events": 9}
    return {"complete": True, "hours": [hour], "clusters": {"east": cluster}, "routes_error": None}


def test_a_complete_hour(call: Any, place: Any) -> None:
    with http_server({QUESTION: as_json(report())}) as url:
        assert call("hours", *place)[:2] == (0, "clicks: no hour is marked as complete.\n")
        for _ in range(2):
            code, out, err = call("complete", *place, "--audit", url, "--json")
            assert (code, err) == (0, "")
            hour = {"hour": NAME, "generation": 1, "verdict": "exact", "why": ""}
            assert json.loads(out) == {"topic": "clicks", "hours": [hour]}
        code, out, _ = call("complete", *place, "--audit", url)
        assert (code, out.split()) == (0, ["HOUR", "GENERATION", "VERDICT", "WHY", NAME, "1", "exact"])
    code, out, _ = call("hours", *place, "--json")
    shown = {"commit": 1, "records": 10, "verdict": "exact", "accepted_by": None, "is_valid": True}
    assert (code, json.loads(out)["hours"]) == (0, [{"hour": NAME, "generation": 1} | shown])


def test_a_table_is_compared_with_the_loads_of_its_own_root(call: Any, place: Any) -> None:
    other = SUMS | {"records": 9}
    own = f"loaded:{name_of_root(place[-1])}"
    answer = report()
    for stages, code in (
        ({own: other, "loaded:file:///elsewhere": SUMS}, 4),
        ({"loaded:file:///elsewhere": SUMS}, 4),
        ({own: SUMS, "loaded:file:///elsewhere": other}, 0),
    ):
        answer["hours"][0]["stages"] = dict.fromkeys(("produced", "live", "replica"), SUMS) | stages
        with http_server({QUESTION: as_json(answer)}) as url:
            assert call("complete", *place, "--audit", url)[0] == code


def test_a_lost_record_is_accepted_by_name_alone(call: Any, place: Any) -> None:
    more = SUMS | {"records": 11}
    with http_server({QUESTION: as_json(report("missing", produced=more))}) as url:
        options = ("complete", *place, "--audit", url)
        code, out, _ = call(*options)
        assert code == 4
        assert f"not complete  missing: {LOST['text']}" in out
        code, out, _ = call(*options, "--hour", NAME, "--accept", "power failure", "--by", "ann", "--json")
        assert (code, json.loads(out)["hours"][0]["verdict"]) == (0, "missing")
        assert call(*options)[0] == 0
    assert call("hours", *place)[1].split()[-5:] == [NAME, "1", "1", "10", "missing", "ann"][-5:]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (as_json({"detail": "no"}, 500), "/v1/report?topic=clicks answers 500: "),
        ((200, b"<html>"), "answers something that is not JSON: is that another service?"),
        (as_json([]), "answers something that is no report of an audit: is that another service?"),
        (as_json({"complete": True}), "answers something that is no report of an audit: is that another service?"),
        (as_json(report() | {"complete": False, "routes_error": "no answer"}), ""),
        (as_json(report() | {"hours": []}), ""),
    ],
)
def test_an_audit_that_knows_nothing_completes_nothing(call: Any, place: Any, answer: Any, said: str) -> None:
    with http_server({QUESTION: answer}) as url:
        code, _, err = call("complete", *place, "--audit", url)
    assert (code, said in err) == (1 if said else 4, True)
    assert call("hours", *place)[1] == "clicks: no hour is marked as complete.\n"


def test_an_audit_that_is_away(call: Any, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = call("complete", *place, "--audit", "127.0.0.1:1")
    assert (code, err.endswith("cannot be reached: Connection refused\n")) == (1, True)
    monkeypatch.setattr(foreground, "ANSWER_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code, _, err = call("complete", *place, "--audit", f"127.0.0.1:{silent.getsockname()[1]}")
    assert (code, "cannot be read: timed out" in err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--accept", "why"), "--accept: needs all of --hour, --accept and --by"),
        (("--hour", NAME, "--accept", "", "--by", "ann"), "--accept: needs all of --hour, --accept and --by"),
        (("--hour", "10:00", "--accept", "why", "--by", "ann"), "--hour: '10:00' is not an hour in UTC such as"),
        (("--hour", NAME.replace("10", "09"), "--accept", "why", "--by", "ann"), "is not an hour of clicks that"),
        (("--without", "loaded"), "--without: 'loaded' is not one of produced, live"),
    ],
)
def test_wrong_options(call: Any, place: Any, arguments: Any, said: str) -> None:
    with http_server({QUESTION: as_json(report())}) as url:
        code, out, err = call("complete", *place, "--audit", url, *arguments)
    assert (code, out, said in err) == (2, "", True), err


def test_a_run_completes_hours_only_with_an_audit_that_it_reports_to(call: Any, tmp_path: Path) -> None:
    run = ("run", "--topic", "clicks", "--root", str(tmp_path), "-b", "127.0.0.1:1", "--set", "value.format=binary")
    needs = "pipeline: --complete: needs --audit, which is asked, and --datacenter, which reports to it\n"
    assert call(*run, "--complete", "--audit", "127.0.0.1:1") == (2, "", needs)
    assert call(*run, "--complete", "--datacenter", "hub") == (2, "", needs)
    assert call(*run, "--audit", "127.0.0.1:1") == (
        2,
        "",
        "pipeline: --audit, --grace and --without: need --complete\n",
    )
    assert call(*run, "--complete", "--audit", "127.0.0.1:1", "--datacenter", "hub", "--without", "x")[0] == 2


def test_a_load_is_shown_although_the_audit_is_away(place: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"topic": "clicks", "root": place[3], "bootstrap.servers": "127.0.0.1:1", "value.format": "binary"}
    loads = LoadsConfig.from_settings(settings, {})
    results = [TopicResult(topic="clicks", seconds=1, result=NOTHING_NEW)]
    with pytest.raises(foreground.ServiceError, match="cannot be reached"):
        run._show(loads, results, Marking(url="http://127.0.0.1:1", grace_s=900, without=()), as_json=False)
    assert capsys.readouterr().out == "clicks: nothing new.\n"
    with http_server({QUESTION: as_json(report())}) as url:
        run._show(loads, results, Marking(url=url, grace_s=900, without=()), as_json=True)
        shown = json.loads(capsys.readouterr().out)
        assert [hour["generation"] for hour in shown["hours"]] == [1]
    with http_server({QUESTION: as_json(report("missing"))}) as url:
        run._show(loads, results, Marking(url=url, grace_s=900, without=()), as_json=False)  # it has its marker
        assert capsys.readouterr().out == "clicks: nothing new.\nclicks: 1 of 1 hour complete.\n"


def test_a_run_whose_hours_are_not_complete_says_so(place: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"topic": "clicks", "root": place[3], "bootstrap.servers": "127.0.0.1:1", "value.format": "binary"}
    loads = LoadsConfig.from_settings(settings, {})
    results = [TopicResult(topic="clicks", seconds=1, result=NOTHING_NEW)]
    with http_server({QUESTION: as_json(report("missing"))}) as url, pytest.raises(typer.Exit) as ended:
        run._show(loads, results, Marking(url=url, grace_s=900, without=()), as_json=False)
    assert ended.value.exit_code == 4
    said = f"clicks: nothing new.\nclicks: 0 of 1 hour complete.\n  {NAME}: missing: {LOST['text']}\n"
    assert capsys.readouterr().out == said


def test_help(call: Any) -> None:
    code, out, _ = call("complete", "--help")
    assert code == 0
    assert {"--audit", "--grace", "--without", "--hour", "--accept", "--by", "--json"} <= set(out.split())
    assert "Exits with 4" in out
