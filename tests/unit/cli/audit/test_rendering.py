"""The report of the audit as a table, as CSV, and as an exit code."""

import csv
import io
from dataclasses import replace
from typing import Any

import pytest

from pipeline.audit.collecting.reading import ReadingState
from pipeline.audit.judgement.verdicts import NOT_OVER, AuditedHour, Stage, Status, Watermark, Witness
from pipeline.audit.reports.documents import Knowledge, clusters_document, report_document
from pipeline.audit.reports.selection import worst_hours
from pipeline.cli.audit.rendering import END_OF_HOUR, MAX_LINES, csv_text, exit_code, render
from pipeline.records.tally import HOUR_MS
from tests.support.audited_hours import FULL, LIVE, NOON_MS, REPLICA, SILENT, audited_hour, finding, hours_back


def document(*hours: AuditedHour, limit: int = 1_000, error: str | None = None, unknown: Any = ()) -> dict[str, Any]:
    state = ReadingState("east", position=3)
    if error is None:
        state.ends_at(3, NOON_MS)
    else:
        state.fail(error)
    knowledge = Knowledge(
        judged_ms=NOON_MS,
        clusters=clusters_document({"east": state.progress}),
        unknown=unknown,
        is_complete=error is None and not unknown,
    )
    marks = [Watermark(topic="clicks", complete_ms=NOON_MS, waits_for="the hour is not over")]
    return report_document(worst_hours(hours, limit), marks, knowledge)


@pytest.mark.parametrize(
    ("status", "code"),
    [(Status.EXACT, 0), (Status.PENDING, 5), (Status.UNKNOWN, 5), (Status.MISSING, 4), (Status.EXPLAINED, 4)],
)
def test_the_exit_code_is_that_of_the_worst_hour(status: Status, code: int) -> None:
    assert exit_code(document(*hours_back(2), audited_hour(status))) == code


def test_nothing_counted_yet_is_not_exact() -> None:
    nothing = document()
    assert exit_code(nothing) == 5
    assert "No counts yet for topic typo." in render(nothing, ["typo"])


def test_a_cluster_that_does_not_answer_takes_the_certainty() -> None:
    away = document(*hours_back(2), error="no broker answers")
    assert exit_code(away) == 5
    assert "east: no broker answers" in render(away)
    assert "no verdict is certain" in render(away)
    lost = document(audited_hour(Status.MISSING), error="no broker answers")
    assert exit_code(lost) == 4


def test_a_witness_that_all_topics_lack_is_named_once() -> None:
    selection = Witness(name="selection of the mirror", reason="was never read", cluster="hub")
    found = document(audited_hour(), unknown=[selection, selection])
    assert (found["complete"], found["exact"]) == (False, False)
    assert found["routes_error"] == "selection of the mirror: was never read"
    assert render(found).count("not known: selection of the mirror: was never read") == 1


def test_a_table_has_the_stages_in_the_order_of_the_way() -> None:
    stages = {
        Stage(tier="stored", name="/lake"): FULL,
        Stage(tier="loaded", name="/lake"): FULL,
        Stage(tier="consumed", name="billing"): FULL,
        REPLICA: FULL,
        LIVE: FULL,
    }
    shown = render(document(audited_hour(stages=stages), audited_hour(Status.CHANGED, NOON_MS - HOUR_MS)))
    assert shown.splitlines()[0].split() == [
        "TOPIC", "HOUR", "PRODUCED", "LIVE", "REPLICA", "CONSUMED:BILLING", "LOADED:/LAKE", "STORED:/LAKE", "STATUS",
    ]  # fmt: skip
    assert "changed (reordered)" in shown
    assert "clicks is complete to 2026-11-01T12:00:00Z, waits for: the hour is not over" in shown


def test_hours_that_are_not_shown_count_in_the_sum() -> None:
    shown = render(document(*hours_back(9), audited_hour(Status.MISSING), limit=2))
    assert "9 of 10 hours exact." in shown
    assert "Hours that are not shown: 8 exact. --all shows more" in shown
    shown = render(document(*hours_back(9), audited_hour(Status.MISSING), limit=2), show_all=True)
    assert "Hours that are not shown: 8 exact. --topic, --from and --to choose." in shown


def test_findings_are_bounded_without_all() -> None:
    many = [finding(Status.MISSING, NOON_MS, partition=number) for number in range(MAX_LINES + 7)]
    found = document(audited_hour(Status.MISSING, findings=many))
    assert "... and 7 more findings" in render(found)
    assert f"clicks-{MAX_LINES + 6}:" in render(found, show_all=True)


def test_control_characters_do_not_reach_the_terminal() -> None:
    found = document(
        audited_hour(Status.MISSING, topic="a\x1b[2Jb", findings=[finding(Status.MISSING, 0, text="\x1b")])
    )
    assert "\x1b" not in render(found)
    assert "\x1b" not in csv_text(found)


def test_names_of_groups_and_roots_do_not_control_the_terminal() -> None:
    hostile = Stage(tier="consumed", name="a\x1b[2J\n\ud800b")
    found = document(audited_hour(stages={LIVE: FULL, hostile: FULL}))
    for text in (render(found), csv_text(found)):
        assert all(line.isprintable() for line in text.splitlines())
        assert "\\ud800" in text.splitlines()[0].lower()


def test_csv_has_a_line_for_each_hour() -> None:
    found = document(*hours_back(1), audited_hour(Status.MISSING, stages={LIVE: FULL}), audited_hour(Status.UNKNOWN))
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert [row["status"] for row in rows] == ["exact", "missing", "unknown"]
    assert (rows[0]["produced"], rows[1]["produced"], rows[1]["live"], rows[1]["kind"]) == ("10", "", "10", "missing")
    assert rows[2]["missing_witnesses"] == "the broker of hub"


def test_an_hour_that_is_not_over_is_no_missing_witness() -> None:
    assert END_OF_HOUR == NOT_OVER
    hour = replace(audited_hour(Status.PENDING), missing_witnesses=[Witness(name=NOT_OVER, reason="not over"), SILENT])
    shown = render(document(hour))
    assert "1 hour is pending" in shown
    assert "not known: the broker of hub" in shown
    assert "not known: the hour" not in shown
