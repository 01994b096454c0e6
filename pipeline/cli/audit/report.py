"""`pipeline audit report`: counts of every stage by topic and hour, with their verdicts."""

import time
import urllib.parse
from typing import Annotated

import typer

from pipeline.cli.audit.rendering import render
from pipeline.cli.foreground import http_url, read_json
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json

POLL_INTERVAL_S = 0.5


def report(
    url: Annotated[
        str, typer.Option("--audit", metavar="URL", parser=http_url, help="HTTP address of the audit service.")
    ],
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    wait: Annotated[
        float, typer.Option("--wait", min=0, max=3600, help="Wait up to this many seconds until every hour is exact.")
    ] = 0.0,
    json: Json = False,
) -> None:
    """Compare the counts of producers, brokers, mirror and loads by topic and hour.

    Exits with 4 unless every hour is exact.
    """
    query = f"?{urllib.parse.urlencode({'topic': topic})}" if topic else ""
    deadline = time.monotonic() + wait
    while True:
        document = read_json(f"{url}/v1/report{query}")
        if document["exact"] or time.monotonic() >= deadline:
            break
        time.sleep(POLL_INTERVAL_S)
    if json:
        output.print_json(document)
    else:
        output.say(render(document, topic))
    if not document["exact"]:
        raise typer.Exit(output.EXIT_NOT_EXACT)
