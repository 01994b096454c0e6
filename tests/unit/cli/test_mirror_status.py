"""`pipeline mirror status` says how far the offsets of groups were copied."""

from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli import mirror
from pipeline.cli.main import app

GROUPS = {
    "copied": 12,
    "waiting": 3,
    "left_alone": [
        {"group": "billing", "reason": "has members at the hub"},
        {"group": "search", "topic": "clicks", "partition": 4, "reason": "moved on at the hub"},
    ],
    "left_alone_count": 2,
    "error": "broker 3 is not registered",
    "age_seconds": 1.25,
}


def status(monkeypatch: pytest.MonkeyPatch, source: dict[str, Any]) -> str:
    document = {"error": None, "sources": [{"name": "east", "error": None, "partitions": [], **source}]}
    monkeypatch.setattr(mirror, "read_json", lambda _url: document)
    result = CliRunner().invoke(app, ["mirror", "status", "--mirror", "http://127.0.0.1:8090"])
    assert result.exit_code == 0, result.output
    return result.output


def test_offsets_of_groups_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = status(monkeypatch, {"groups": GROUPS}).splitlines()
    assert lines[-4:] == [
        "east: offsets of groups: compared 1.2 s ago, 12 copied, 3 wait, 2 left alone",
        "east: group billing has members at the hub",
        "east: group search in clicks-4 moved on at the hub",
        "east: offsets of groups: broker 3 is not registered",
    ]


def test_a_source_whose_groups_were_never_compared_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = {**GROUPS, "age_seconds": None, "left_alone": [], "left_alone_count": 0, "error": None}
    assert "not compared yet" in status(monkeypatch, {"groups": fresh})


@pytest.mark.parametrize("source", [{}, {"groups": None}])
def test_a_mirror_that_copies_no_groups_says_nothing(monkeypatch: pytest.MonkeyPatch, source: dict[str, Any]) -> None:
    assert "offsets of groups" not in status(monkeypatch, source)
