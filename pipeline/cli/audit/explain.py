"""`pipeline audit explain`: the story of an hour in sentences."""

import urllib.parse
from typing import Annotated

import typer

from pipeline.cli.audit.documents import STORY_PARTS, checked_topic, read_audit_document
from pipeline.cli.audit.rendering import exit_code
from pipeline.cli.audit.report import Audit
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json
from pipeline.cli.terminal.times import TIME_HELP, read_time_ms

NARROWING_TIMEOUT_S = 150.0
"""Longer than the deadline of the service for its questions to the brokers."""


def explain_hour(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to explain.")],
    hour: Annotated[str, typer.Argument(metavar="HOUR", help=f"A time within the hour: {TIME_HELP}.")],
    url: Audit,
    narrow: Annotated[
        bool, typer.Option("--narrow", help="Ask the brokers, to find the batches and records of each difference.")
    ] = False,
    json: Json = False,
) -> None:
    """Report what each stage counted in an hour, where the first difference is, what explains it, and what to do.

    Exits as `audit report`.
    """
    place = f"{urllib.parse.quote(checked_topic('TOPIC', topic), safe='')}/{read_time_ms('HOUR', hour)}"
    question = f"{url}/v1/explain/{place}{'?narrow=true' if narrow else ''}"
    document = read_audit_document(question, STORY_PARTS, timeout_s=NARROWING_TIMEOUT_S)
    if json:
        output.print_json(document)
    else:
        for sentence in document["sentences"]:
            output.say(output.printable(sentence))
        if document["is_narrowed"]:
            for finding in document["findings"]:
                output.say(output.printable(f"found: {finding['text']}"))
        if document.get("narrowing_error"):
            output.say(output.printable(f"not narrowed: {document['narrowing_error']}"))
    if code := exit_code(document):
        raise typer.Exit(code)
