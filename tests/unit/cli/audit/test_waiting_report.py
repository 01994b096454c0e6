"""`pipeline audit report --wait`."""

import json

import pytest
from typer.testing import CliRunner

from pipeline.cli.audit import report
from pipeline.cli.main import app
from pipeline.cli.terminal.connect import wall_clock


def test_who_waits_is_told_of_no_judgement_from_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that has just ended would be in no hour of it."""
    asked_ms = wall_clock()
    documents = [{"exact": True, "judged_ms": asked_ms + offset_ms} for offset_ms in (-60_000, -1, 60_000)]
    monkeypatch.setattr(report, "read_audit_document", lambda *_: documents.pop(0))
    monkeypatch.setattr(report, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(report, "exit_code", lambda _: 0)
    done = CliRunner().invoke(app, ["audit", "report", "--audit", "http://audit", "--wait", "60", "--json"])
    assert json.loads(done.output)["judged_ms"] == asked_ms + 60_000
