"""`pipeline audit report`: counts of every stage by topic and hour, with their verdicts."""

import time
import urllib.parse
from collections.abc import Sequence
from typing import Annotated

import typer

from pipeline.cli.audit.rendering import MAX_HOURS, csv_text, exit_code, render
from pipeline.cli.foreground import http_url, read_json
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json
from pipeline.cli.terminal.times import TIME_HELP, read_time_ms
from pipeline.errors import ConfigurationError

POLL_INTERVAL_S = 0.5
MOST_HOURS = 100_000
"""Hours that the service puts in one report at most."""

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
        float, typer.Option("--wait", min=0, max=3600, help="Wait up to this many seconds until every hour is exact.")
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
    question = report_query(topic or (), begin, end, MOST_HOURS if show_all or json or csv else MAX_HOURS)
    deadline = time.monotonic() + wait
    while True:
        document = read_json(f"{url}/v1/report?{question}")
        if document["exact"] or time.monotonic() >= deadline:
            break
        time.sleep(POLL_INTERVAL_S)
    if json:
        output.print_json(document)
    elif csv:
        output.say(csv_text(document).rstrip("\n"))
    else:
        output.say(render(document, topic or (), show_all=show_all))
    if code := exit_code(document):
        raise typer.Exit(code)


def report_query(topics: Sequence[str], begin: str | None, end: str | None, limit: int) -> str:
    """Return the query of `/v1/report`. Raises ConfigurationError for a time that is none."""
    parameters: list[tuple[str, str]] = [("topic", topic) for topic in topics]
    if begin is not None:
        parameters.append(("from", str(read_time_ms("--from", begin))))
    if end is not None:
        parameters.append(("to", str(read_time_ms("--to", end))))
    return urllib.parse.urlencode([*parameters, ("limit", str(limit))])
