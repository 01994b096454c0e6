"""`pipeline audit daily`: the report on a day as one HTML or Markdown file."""

import os
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.audit.documents import REPORT_PARTS, read_audit_document
from pipeline.cli.audit.rendering import exit_code, shown_stages
from pipeline.cli.audit.report import MOST_HOURS, Audit, Topics, report_query
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import wall_clock
from pipeline.errors import ConfigurationError


class DailyFormat(StrEnum):
    """Format of a daily report."""

    HTML = "html"
    MARKDOWN = "markdown"


def daily(
    url: Audit,
    day: Annotated[
        str | None, typer.Option("--day", metavar="YYYY-MM-DD", help="Day in UTC. Default: yesterday.")
    ] = None,
    form: Annotated[DailyFormat, typer.Option("--format", help="Format of the report.")] = DailyFormat.HTML,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File to write, or to replace. Default: standard output."),
    ] = None,
    topic: Topics = None,
) -> None:
    """Write the report on a day into a file that needs no other: verdicts of all topics, findings, what is not known.

    Exits as `audit report`.
    """
    from pipeline.audit.reports.daily import as_html, as_markdown, daily_report

    chosen = _day(day)
    begin = datetime(chosen.year, chosen.month, chosen.day, tzinfo=UTC)
    day_ms = int(begin.timestamp()) * 1000
    end = begin + timedelta(days=1)
    question = report_query(topic or (), begin.isoformat(), end.isoformat(), MOST_HOURS)
    document = read_audit_document(f"{url}/v1/report?{question}", REPORT_PARTS)
    content = daily_report(
        document, chosen.isoformat(), day_ms, output.utc_time(wall_clock()), shown_stages(document["hours"])
    )
    text = as_html(content) if form is DailyFormat.HTML else as_markdown(content)
    if out is None:
        output.say(text.rstrip("\n"))
    else:
        _write(out, text)
    if code := exit_code(document):
        raise typer.Exit(code)


def _day(text: str | None) -> date:
    if text is None:
        return datetime.fromtimestamp(wall_clock() / 1000, UTC).date() - timedelta(days=1)
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise ConfigurationError("--day", f"{text[:40]!r} is not a day: give it as 2026-11-01") from None
    if not 1970 <= day.year < 9999:
        raise ConfigurationError("--day", f"{text[:40]} is not between 1970 and 9998")
    return day


def _write(path: Path, text: str) -> None:
    """Replace the file as a whole, so that no reader sees a part."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        output.exit_with(f"{path} cannot be written: {error.strerror}")
