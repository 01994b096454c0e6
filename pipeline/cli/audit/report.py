"""`pipeline audit report`: counts of every stage by topic and hour, with their verdicts."""

import time
import urllib.parse
from collections.abc import Sequence
from typing import Annotated

import typer

from pipeline.cli.audit.documents import REPORT_PARTS, checked_topic, finite_seconds, read_audit_document
from pipeline.cli.audit.rendering import MAX_HOURS, csv_text, exit_code, hours_not_shown, render, topics_not_counted
from pipeline.cli.foreground import http_url
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, wall_clock
from pipeline.cli.terminal.times import TIME_HELP, read_time_ms
from pipeline.errors import ConfigurationError

POLL_INTERVAL_S = 0.5
MOST_HOURS = 100_000
"""Hours that the service puts in one report at most."""
MOST_TOPICS = 1_000
"""Topics that the service takes in one question."""

Audit = Annotated[
    str, typer.Option("--audit", metavar="URL", parser=http_url, help="HTTP address of the audit service.")
]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be repeated.")]


def report(
    url: Audit,
    topic: Topics = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help=f"Only hours that begin at this time or later: {TIME_HELP}."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Only hours that begin before this time.")
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            min=0,
            max=3600,
            help="Wait up to this many seconds until every hour is exact, by a judgement from after the command began.",
        ),
    ] = 0.0,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: a line for each topic and hour.")] = False,
    show_all: Annotated[
        bool,
        typer.Option("--all", help=f"Show all hours and findings, not only the {MAX_HOURS} worst and newest."),
    ] = False,
) -> None:
    """Compare the counts of producers, brokers, mirror and loads by topic and hour.

    Exits with 0 if every hour is exact, 4 if there is a difference, 5 if hours are pending or something is not known, 1
    if the service cannot be reached.
    """
    if json and csv:
        raise ConfigurationError("--csv", "and --json exclude each other")
    wait = finite_seconds("--wait", wait)
    question = report_query(topic or (), begin, end, MOST_HOURS if show_all or json or csv else MAX_HOURS)
    deadline, began_ms = time.monotonic() + wait, wall_clock()
    while True:
        document = read_audit_document(f"{url}/v1/report?{question}", REPORT_PARTS)
        is_new = document["judged_ms"] >= began_ms  # what was done before the command is in the judgement
        if (document["exact"] and is_new) or time.monotonic() >= deadline:
            break
        time.sleep(POLL_INTERVAL_S)
    if json:
        output.print_json(document)
    elif csv:
        output.say(csv_text(document).rstrip("\n"))
        for sentence in [*topics_not_counted(document), *hours_not_shown(document, show_all=True)]:
            output.note(sentence)
    else:
        output.say(render(document, topic or (), show_all=show_all))
    if code := exit_code(document):
        raise typer.Exit(code)


def report_query(topics: Sequence[str], begin: str | None, end: str | None, limit: int) -> str:
    """Return the query of `/v1/report`. Raises ConfigurationError for what no report can be about."""
    if len(topics) > MOST_TOPICS:
        raise ConfigurationError("--topic", f"may be given {MOST_TOPICS} times: ask for all topics instead")
    parameters: list[tuple[str, str]] = [("topic", checked_topic("--topic", topic)) for topic in topics]
    begin_ms = None if begin is None else read_time_ms("--from", begin)
    end_ms = None if end is None else read_time_ms("--to", end)
    if begin_ms is not None and end_ms is not None and begin_ms >= end_ms:
        raise ConfigurationError("--from", "must be before --to")
    parameters += [(name, str(time)) for name, time in (("from", begin_ms), ("to", end_ms)) if time is not None]
    return urllib.parse.urlencode([*parameters, ("limit", str(limit))])
