"""`pipeline load complete` and `hours`: markers of complete hours."""

import secrets
from typing import Annotated, Any

import typer

from pipeline.cli.foreground import http_url, read_json
from pipeline.cli.load.commits import Root, Topic, committed_state
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, wall_clock
from pipeline.errors import ConfigurationError


def complete(
    topic: Topic,
    root: Root,
    url: Annotated[
        str, typer.Option("--audit", metavar="URL", parser=http_url, help="HTTP address of the audit service.")
    ],
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds after its end in which an hour gets no marker.")
    ] = 900.0,
    without: Annotated[
        list[str] | None, typer.Option("--without", help="Witness to do without: produced; may be repeated.")
    ] = None,
    hour: Annotated[
        str | None, typer.Option("--hour", metavar="2026-01-31T10:00:00Z", help="Hour whose difference is accepted.")
    ] = None,
    accept: Annotated[str | None, typer.Option("--accept", metavar="REASON", help="Why it is accepted.")] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Person that accepts it.")] = None,
    json: Json = False,
) -> None:
    """Publish `_COMPLETE` in the folder of each hour whose counts the audit found exact.

    Exits with 4 unless every hour that is over has a valid marker.
    """
    from pipeline.hadoop.commit.complete_hours import WITNESSES, Acceptance, complete_hours
    from pipeline.hadoop.commit.layout import topic_layout
    from pipeline.hadoop.files.filesystem import open_filesystem

    given = [value for value in (hour, accept, by) if value]
    if given and len(given) < 3:
        raise ConfigurationError("--accept", "needs all of --hour, --accept and --by")
    for witness in without or ():
        if witness not in WITNESSES[:-1]:
            raise ConfigurationError("--without", f"'{witness}' is not one of {', '.join(WITNESSES[:-1])}")
    files, path = open_filesystem(root)
    layout = topic_layout(path, topic)
    committed_state(topic, root)
    verdicts, valid = complete_hours(
        files,
        layout,
        lambda: read_json(f"{url}/v1/report?topic={topic}"),
        topic,
        secrets.token_hex(8),
        now_ms=wall_clock(),
        grace_ms=int(grace * 1000),
        without=without or (),
        accepted=[Acceptance(hour=hour, accepted_by=by, reason=accept)] if hour and by and accept else [],
    )
    rows: list[list[Any]] = [
        [each.hour, valid[each.hour_ms].generation, valid[each.hour_ms].verdict, ""]
        if each.hour_ms in valid
        else [each.hour, None, "not complete", each.why]
        for each in verdicts
    ]
    if json:
        names = ("hour", "generation", "verdict", "why")
        output.print_json({"topic": topic, "hours": [dict(zip(names, row, strict=True)) for row in rows]})
    elif rows:
        output.say(output.table(["HOUR", "GENERATION", "VERDICT", "WHY"], rows))
    else:
        output.say(f"{topic}: the audit has no hour that is over.")
    if not rows or any(row[1] is None for row in rows):
        raise typer.Exit(output.EXIT_NOT_EXACT)


def show_hours(topic: Topic, root: Root, json: Json = False) -> None:
    """Show the complete hours of a topic, and whether late data came after their markers."""
    from pipeline.hadoop.commit.complete_hours import is_valid, read_markers
    from pipeline.hadoop.commit.layout import topic_layout
    from pipeline.hadoop.files.filesystem import open_filesystem

    files, path = open_filesystem(root)
    layout = topic_layout(path, topic)
    state = committed_state(topic, root)
    rows: list[list[Any]] = [
        [
            marker.hour,
            marker.generation,
            marker.commit,
            marker.records,
            marker.verdict,
            marker.accepted_by,
            marker is markers[-1] and is_valid(state, hour_ms, marker),
        ]
        for hour_ms, markers in sorted(read_markers(files, layout).items())
        for marker in markers
    ]
    names = ("hour", "generation", "commit", "records", "verdict", "accepted_by", "is_valid")
    if json:
        output.print_json({"topic": topic, "hours": [dict(zip(names, row, strict=True)) for row in rows]})
    elif rows:
        for row in rows:
            row[-1] = "" if row[-1] else "superseded by late data"
        output.say(output.table(["HOUR", "GENERATION", "COMMIT", "RECORDS", "VERDICT", "ACCEPTED BY", ""], rows))
    else:
        output.say(f"{topic}: no hour is marked as complete.")
