"""`pipeline audit watch`: verdicts as they change; a table on a terminal, lines in a pipe."""

import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

import typer

from pipeline.cli.audit.documents import (
    REPORT_PARTS,
    STATUS_PARTS,
    checked_topic,
    fetch_audit_document,
    finite_seconds,
)
from pipeline.cli.audit.rendering import STATUS_OF_LETTER
from pipeline.cli.audit.report import Audit
from pipeline.cli.foreground import ServiceError
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, wall_clock

HOURS_SHOWN: Final = 24
TOPICS_SHOWN: Final = 40
DIFFERENCES: Final = frozenset("rxqc+-")
MAX_SENTENCES: Final = 5
"""Findings that a line of a new difference is followed by."""


class _Hour(NamedTuple):
    topic: str
    start_ms: int


def watch(
    url: Audit,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TEXT", help="Only topics with this text in their names.")
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between questions to the audit.")
    ] = 2.0,
    json: Json = False,
) -> None:
    """Show the verdicts of the newest hours, and each change, until Ctrl-C.

    On a terminal a table is redrawn. In a pipe, or with --json, each change of a verdict is a line; at first
    each hour that is not exact is one. If the audit does not answer, the command says so, and asks again.
    """
    interval = finite_seconds("--interval", interval)
    asked = f"?{urllib.parse.urlencode({'topic': checked_topic('--topic', topic)})}" if topic else ""
    question = f"{url}/v1/status{asked}"
    if output.is_terminal() and not json:
        _draw(question, interval)
    else:
        _print_changes(url, question, interval, json=json)


def _draw(question: str, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    shown = "Waiting for the audit ..."
    with Live(Text(shown), console=Console(), auto_refresh=False, screen=False) as live:
        while True:
            try:
                shown = status_table(fetch_audit_document(question, STATUS_PARTS), wall_clock())
            except ServiceError as error:
                shown = f"{error}\nThis is what the audit said before:\n{shown.rpartition('said before:')[2].lstrip()}"
            live.update(Text(shown, no_wrap=True, overflow="ellipsis"), refresh=True)
            time.sleep(interval_s)


def status_table(document: Mapping[str, Any], now_ms: int) -> str:
    """Return the table of `audit watch`: a line for each topic, with a letter for each of the newest hours."""
    end_ms = document["from_ms"] + document["hours"] * document["hour_ms"]
    first = document["hours"] - HOURS_SHOWN
    rows = []
    for each in document["topics"][:TOPICS_SHOWN]:
        letters = " " * each["start"] + each["letters"]
        newest = letters.ljust(document["hours"])[first:].replace(" ", ".")
        rows.append([each["topic"], newest, each["complete_to"], each["waits_for"]])
    judged = output.utc_time(document["judged_ms"])
    lines = [
        f"{output.utc_time(now_ms)}  verdict: {document['verdict']}  judged at {judged}",
        output.table(["TOPIC", f"{HOURS_SHOWN} HOURS TO {output.utc_time(end_ms)}", "COMPLETE TO", "WAITS FOR"], rows),
    ]
    hidden = len(document["topics"]) - len(rows) + document["topics_left_out"]
    if hidden:
        lines.append(f"... and {output.counted(hidden, 'more topic')}: --topic chooses")
    lines += [
        output.printable(f"{name}: {state['error']}") for name, state in document["clusters"].items() if state["error"]
    ]
    lines += [output.printable(f"not known: {each['name']}: {each['reason']}") for each in document["unknown"][:10]]
    lines.append("Letters: " + ", ".join(f"{letter} {status}" for letter, status in STATUS_OF_LETTER.items()))
    return "\n".join(lines)


def _print_changes(url: str, question: str, interval_s: float, *, json: bool) -> None:
    before: dict[_Hour, str] = {}
    trouble = ""
    hidden = 0
    while True:
        try:
            document = fetch_audit_document(question, STATUS_PARTS)
            now = letters_of(document)
            for hour, letter in now.items():
                if before.get(hour, "e") != letter:
                    _print_change(url, hour, before.get(hour), letter, json=json)
                before[hour] = letter
            before, trouble = now, ""
            if document["topics_left_out"] != hidden:
                hidden = document["topics_left_out"]
                output.note(f"changes of {output.counted(hidden, 'more topic')} are not shown: --topic chooses")
        except ServiceError as error:
            if str(error) != trouble:
                trouble = str(error)
                output.note(f"{output.utc_time(wall_clock())} {trouble}")
        time.sleep(interval_s)


def letters_of(document: Mapping[str, Any]) -> dict[_Hour, str]:
    """Return the letter of each hour that has counts."""
    return {
        _Hour(each["topic"], document["from_ms"] + (each["start"] + i) * document["hour_ms"]): letter
        for each in document["topics"]
        for i, letter in enumerate(each["letters"])
        if letter != " "
    }


def _print_change(url: str, hour: _Hour, before: str | None, letter: str, *, json: bool) -> None:
    status = STATUS_OF_LETTER.get(letter, letter)
    was = None if before is None else STATUS_OF_LETTER.get(before, before)
    sentences = list(_sentences(url, hour)) if letter in DIFFERENCES else []
    name = output.utc_time(hour.start_ms)
    if json:
        output.print_json(
            {
                "time": output.utc_time(wall_clock()),
                "topic": hour.topic,
                "hour": name,
                "before": was,
                "status": status,
                "findings": sentences,
            }
        )
        return
    change = status if was is None else f"{was} -> {status}"
    output.say(output.printable(f"{output.utc_time(wall_clock())} {hour.topic} {name} {change}"))
    for sentence in sentences:
        output.say(output.printable(f"  {sentence}"))


def _sentences(url: str, hour: _Hour) -> Iterator[str]:
    parameters = {"topic": hour.topic, "from": hour.start_ms, "to": hour.start_ms + 1}
    document = fetch_audit_document(f"{url}/v1/report?{urllib.parse.urlencode(parameters)}", REPORT_PARTS)
    for each in document["hours"]:
        for finding in each["findings"][:MAX_SENTENCES]:
            yield finding["text"]
