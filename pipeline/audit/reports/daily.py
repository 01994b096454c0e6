"""Daily reports as one HTML or Markdown file, made of the document of `/v1/report`. Pure.

A file is self-contained: no script, nothing that is loaded. Names of topics and texts of findings may be hostile, so
each text is escaped.
"""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.audit.judgement.verdicts import Status
from pipeline.audit.reports.letters import LETTERS, NOTHING_COUNTED, SEVERITY
from pipeline.records.tally import HOUR_MS

HOURS: Final = 24
MAX_SENTENCES: Final = 1_000
"""Findings of a file, and witnesses."""
VERDICTS: Final = {
    "exact": "Every hour is exact: all stages counted the same records.",
    "difference": "Records are missing, doubled or changed, or differ for a known reason.",
    "unknown": "Not complete: hours are pending, a witness is missing, or nothing was counted.",
}
MARKDOWN_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$-])")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A topic of the day."""

    topic: str
    letters: Sequence[str]
    records: Mapping[str, int]
    status: Status
    complete_to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyReport:
    """Content of a daily report. `day` is as 2026-11-01, in UTC."""

    day: str
    made: str
    verdict: str
    lines: Sequence[_Line]
    stages: Sequence[str]
    findings: Sequence[tuple[str, str, str, str]]
    """Topic, hour, status and sentence of each finding, the worst first."""
    unknown: Sequence[str]
    """Missing witnesses, each once."""
    left_out: Mapping[str, int]
    clusters: Sequence[tuple[str, str, str]]
    """Name, time up to which its events were read, and trouble."""


def daily_report(document: Mapping[str, Any], day: str, day_ms: int, made: str, stages: Sequence[str]) -> DailyReport:
    """Return the content of the report on a day that begins at `day_ms`; `stages` are the columns of records."""
    hours_of: dict[str, list[Mapping[str, Any]]] = {}
    for hour in document["hours"]:
        hours_of.setdefault(hour["topic"], []).append(hour)
    findings = [
        (topic, hour["hour"], finding["status"], finding["text"])
        for topic, hours in hours_of.items()
        for hour in hours
        for finding in hour["findings"]
    ]
    missing = [each for hour in document["hours"] for each in hour["missing_witnesses"]]
    return DailyReport(
        day=day,
        made=made,
        verdict=document["verdict"],
        lines=[_line(topic, hours, day_ms, document["watermarks"].get(topic, {})) for topic, hours in hours_of.items()],
        stages=stages,
        findings=sorted(findings, key=lambda each: (-SEVERITY[Status(each[2])], each)),
        unknown=[
            *(f"{topic}: nothing was counted" for topic in document.get("uncounted", ())),
            *dict.fromkeys(f"{each['name']}: {each['reason']}" for each in [*document["unknown"], *missing]),
        ],
        left_out=document["hours_left_out"],
        clusters=[
            (name, state["read_to"] or "never", state["error"] or "") for name, state in document["clusters"].items()
        ],
    )


def _line(topic: str, hours: Sequence[Mapping[str, Any]], day_ms: int, watermark: Mapping[str, Any]) -> _Line:
    letters = [NOTHING_COUNTED] * HOURS
    records: dict[str, int] = {}
    for hour in hours:
        place = (hour["hour_ms"] - day_ms) // HOUR_MS
        if 0 <= place < HOURS:
            letters[place] = LETTERS[Status(hour["status"])]
        for stage, sums in hour["stages"].items():
            records[stage] = records.get(stage, 0) + sums["records"]
    worst = max((Status(hour["status"]) for hour in hours), key=SEVERITY.__getitem__)
    complete_to = watermark.get("complete_to") or "not complete"
    return _Line(topic=topic, letters=letters, records=records, status=worst, complete_to=complete_to)


def as_markdown(report: DailyReport) -> str:
    """Return the report as Markdown."""
    text = _markdown_text
    legend = ", ".join(f"`{letter}` {status}" for status, letter in LETTERS.items())
    nothing = _meaning_of_nothing(report)
    lines = [
        f"# Audit of {report.day}",
        "",
        f"**{report.verdict}**: {VERDICTS[report.verdict]} Made at {report.made}.",
        "",
        "| topic | hours from 00 UTC on | status | complete to | "
        + "".join(f"{text(stage)} | " for stage in report.stages),
        "|---|---|---|---|" + "---:|" * len(report.stages),
    ]
    for line in report.lines:
        letters = "".join(letter if letter != NOTHING_COUNTED else "." for letter in line.letters)
        counts = "".join(f" {line.records.get(stage, '')} |" for stage in report.stages)
        lines.append(f"| {text(line.topic)} | `{letters}` | {line.status} | {text(line.complete_to)} |{counts}")
    lines += ["", f"Letters: {legend}, `.` {nothing}.", ""]
    if report.findings:
        lines += ["## Findings", ""]
        lines += [
            f"- {text(topic)}, {text(hour)}, {status}: {text(sentence)}"
            for topic, hour, status, sentence in report.findings[:MAX_SENTENCES]
        ]
        lines += _more(report.findings, "- ")
    if report.unknown:
        lines += ["", "## Not known", ""]
        lines += [f"- {text(each)}" for each in report.unknown[:MAX_SENTENCES]]
        lines += _more(report.unknown, "- ")
    lines += ["", "## Clusters", "", "| cluster | read to | trouble |", "|---|---|---|"]
    lines += [f"| {text(name)} | {text(read_to)} | {text(trouble)} |" for name, read_to, trouble in report.clusters]
    if report.left_out:
        lines += ["", _left_out(report.left_out)]
    return "\n".join(lines) + "\n"


def as_html(report: DailyReport) -> str:
    """Return the report as an HTML page."""
    text = _html_text
    head = "".join(f"<th scope=col>{text(stage)}" for stage in report.stages)
    rows = "".join(
        f"<tr><th scope=row>{text(line.topic)}<td class=hours>{_cells(line)}"
        f"<td>{line.status}<td>{text(line.complete_to)}"
        + "".join(f"<td class=n>{line.records.get(stage, '')}" for stage in report.stages)
        for line in report.lines
    )
    findings = "".join(
        f"<tr><th scope=row>{text(topic)}<td>{text(hour)}<td>{status}<td>{text(sentence)}"
        for topic, hour, status, sentence in report.findings[:MAX_SENTENCES]
    )
    clusters = "".join(
        f"<tr><th scope=row>{text(name)}<td>{text(read_to)}<td>{text(trouble)}"
        for name, read_to, trouble in report.clusters
    )
    legend = ", ".join(f"<b class={status}>{letter}</b> {status}" for status, letter in LETTERS.items())
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Audit of {report.day}</title>"
        f'<meta name=viewport content="width=device-width"><style>{STYLE}</style>',
        f"<h1>Audit of {report.day}</h1><p><strong>{report.verdict}</strong>: {VERDICTS[report.verdict]} "
        f"Made at {text(report.made)}.",
        f"<div><table><tr><th scope=col>topic<th scope=col>hours from 00 UTC on<th scope=col>status"
        f"<th scope=col>complete to{head}{rows}</table></div><p>Letters: {legend}, . {_meaning_of_nothing(report)}.",
    ]
    if findings:
        parts.append(f"<h2>Findings</h2><div><table>{findings}</table></div>{_more_html(report.findings)}")
    if report.unknown:
        witnesses = "".join(f"<li>{text(each)}" for each in report.unknown[:MAX_SENTENCES])
        parts.append(f"<h2>Not known</h2><ul>{witnesses}</ul>{_more_html(report.unknown)}")
    parts.append(
        f"<h2>Clusters</h2><div><table><tr><th scope=col>cluster<th scope=col>read to<th scope=col>trouble{clusters}"
        "</table></div>"
    )
    if report.left_out:
        parts.append(f"<p>{_left_out(report.left_out)}")
    return "\n".join(parts) + "</html>\n"


STYLE: Final = """
:root{color-scheme:light dark;--bad:#b00020;--doubt:#8a5a00;--well:#1b6e3c;--line:#8886}
body{font:16px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem}
div{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.3rem .6rem;text-align:left;vertical-align:top;
border-bottom:1px solid var(--line)}.n{text-align:right;font-variant-numeric:tabular-nums}
.hours{font-family:ui-monospace,monospace;white-space:pre}b{font-weight:700}
.exact{color:var(--well);font-weight:400}.missing,.extra,.changed{color:var(--bad)}.unknown,.pending{color:var(--doubt)}
@media(prefers-color-scheme:dark){:root{--bad:#ff8a93;--doubt:#f0b455;--well:#7fd6a0}}
"""


def _cells(line: _Line) -> str:
    status_of = {letter: status for status, letter in LETTERS.items()}
    return "".join(
        f"<b class={status_of[letter]}>{letter}</b>" if letter in status_of else "." for letter in line.letters
    )


def _meaning_of_nothing(report: DailyReport) -> str:
    return "nothing counted or left out" if report.left_out else "nothing counted"


def _left_out(counts: Mapping[str, int]) -> str:
    named = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"Hours that are left out: {named}. The amounts are those of the other hours."


def _more(sentences: Sequence[object], prefix: str) -> list[str]:
    rest = len(sentences) - MAX_SENTENCES
    return [f"{prefix}and {rest} more"] if rest > 0 else []


def _more_html(sentences: Sequence[object]) -> str:
    return "".join(f"<p>{line}." for line in _more(sentences, ""))


def _markdown_text(text: str) -> str:
    """Return the text on one line, with all characters escaped that mean something in Markdown or HTML."""
    return MARKDOWN_SPECIAL.sub(r"\\\1", _visible(text))


def _html_text(text: str) -> str:
    return html.escape(_visible(text))


def _visible(text: str) -> str:
    """Return the text on one line, with unprintable characters (controls, changes of direction) as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))
