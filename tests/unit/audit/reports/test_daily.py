"""Daily reports: complete, self-contained, and safe whatever names hold."""

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import pytest

from pipeline.audit.judgement.verdicts import AuditedHour, Status
from pipeline.audit.reports.daily import MAX_SENTENCES, DailyReport, as_html, as_markdown, daily_report
from pipeline.audit.reports.documents import hour_document
from pipeline.audit.reports.letters import common_verdict
from pipeline.records.tally import HOUR_MS
from tests.support.audited_hours import NOON_MS, audited_hour, finding, hours_back

MIDNIGHT_MS = NOON_MS - 12 * HOUR_MS
HOSTILE = "<script>alert(1)</script>|`*[x](javascript:1)\n# boo\u202e"


class Outline(HTMLParser):
    """Tags and attributes of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "onclick", "style")]

    def handle_data(self, data: str) -> None:
        self.text += data


def report(*hours: AuditedHour, left_out: Mapping[str, int] | None = None) -> DailyReport:
    document: dict[str, Any] = {
        "verdict": common_verdict({hour.status for hour in hours}),
        "hours": [hour_document(hour) for hour in hours],
        "watermarks": {"clicks": {"complete_to": "2026-11-01T11:50:00Z", "waits_for": "x"}},
        "unknown": [],
        "hours_left_out": left_out or {},
        "clusters": {
            "east": {"read_to": "2026-11-01T12:00:00Z", "error": None},
            "hub": {"read_to": None, "error": "no"},
        },
    }
    return daily_report(document, "2026-11-01", MIDNIGHT_MS, "2026-11-02T00:10:00Z", ["produced", "live", "replica"])


def outline(text: str) -> Outline:
    parsed = Outline()
    parsed.feed(text)
    return parsed


def test_a_day_has_a_letter_for_each_hour_and_sums_for_each_stage() -> None:
    text = as_markdown(report(*hours_back(3), audited_hour(Status.MISSING)))
    (row,) = re.findall(r"^\| clicks .*$", text, re.MULTILINE)
    assert "`.........eee-...........`" in row
    assert "| missing |" in row
    assert row.endswith("| 40 | 40 | 40 |")
    assert "**difference**" in text
    assert r"2026\-11\-01T11:50:00Z" in row
    page = outline(as_html(report(*hours_back(3), audited_hour(Status.MISSING))))
    assert ".........eee-..........." in page.text
    assert "hub" in page.text


def test_the_worst_findings_come_first_and_those_left_out_are_counted() -> None:
    many = [finding(Status.PENDING, NOON_MS, partition=n) for n in range(900)]
    first = audited_hour(Status.PENDING, NOON_MS - HOUR_MS, findings=many)
    second = audited_hour(
        Status.MISSING, findings=[finding(Status.MISSING, NOON_MS, text="lost!"), *many[:MAX_SENTENCES]]
    )
    for text in (as_markdown(report(first, second)), as_html(report(first, second))):
        assert text.index("lost") < text.index("pending", text.index("Findings"))
        assert "and 801 more" in text


@pytest.mark.parametrize("form", [as_html, as_markdown])
def test_hours_that_are_left_out_are_not_called_uncounted(form: Any) -> None:
    assert "nothing counted or left out" not in form(report(*hours_back(3)))
    text = form(report(*hours_back(3), left_out={"exact": 5}))
    assert "nothing counted or left out" in text
    assert "Hours that are left out: 5 exact. The amounts are those of the other hours." in text


def test_witnesses_are_named_once() -> None:
    text = as_markdown(report(audited_hour(Status.UNKNOWN), audited_hour(Status.UNKNOWN, NOON_MS - HOUR_MS)))
    assert text.count(r"- the broker of hub: never reported clicks\-0") == 1


def test_hostile_names_stay_text_in_html() -> None:
    page = outline(as_html(report(audited_hour(Status.MISSING, topic=HOSTILE))))
    assert "script" not in page.tags
    assert page.links == []
    assert "<script>alert(1)</script>" in page.text
    assert "\u202e" not in page.text


def test_hostile_names_stay_text_in_markdown() -> None:
    text = as_markdown(report(audited_hour(Status.MISSING, topic=HOSTILE)))
    assert "\n# boo" not in text
    assert not re.search(r"(?<!\\)<script", text)
    assert not re.search(r"(?<!\\)\[x", text)
    (row,) = re.findall(r"^\| \\<script.*$", text, re.MULTILINE)
    assert len(re.findall(r"(?<!\\)\|", row)) == 8


@pytest.mark.parametrize("form", [as_html, as_markdown])
def test_a_day_without_counts_says_so(form: Any) -> None:
    assert "unknown" in form(report())
