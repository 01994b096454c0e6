"""`pipeline mirror pause` and `resume`: partitions that a user, or a gap, keeps from being copied."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from pipeline.cli.foreground import Mirror, read_json
from pipeline.cli.mirror.gaps import table_of_gaps
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json

Flow = Annotated[str | None, typer.Option("--flow", metavar="NAME", help="All topics of this flow.")]
OfSource = Annotated[
    str | None,
    typer.Option("--source", metavar="NAME", help="All of this source; with names, only its partitions."),
]


def pause_copying(
    url: Mirror,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC[-PARTITION]...]", help="Topics or partitions of sources.")
    ] = None,
    flow: Flow = None,
    source: OfSource = None,
    json: Json = False,
) -> None:
    """Stop copying topics, partitions, a flow or a source until `pipeline mirror resume`, also after restarts.

    All mirrors of the hub follow. The status goes on showing the lag.
    """
    document = read_json(f"{url}/v1/pause", {"names": names or [], "flow": flow, "source": source})
    if json:
        output.print_json(document)
    else:
        for scope in document["scopes"]:
            output.say(f"paused: {scope_text(scope)}")


def resume_copying(
    url: Mirror,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC[-PARTITION]...]", help="Paused or halted partitions, or topics with some."),
    ] = None,
    flow: Flow = None,
    source: OfSource = None,
    skip: Annotated[bool, typer.Option("--skip", help="Record the gaps, and continue behind them.")] = False,
    json: Json = False,
) -> None:
    """Continue copying what is paused, or halted at records that the source no longer has.

    A pause ends. For halted partitions, show the missing records; with --skip continue behind them.
    """
    if skip and (flow is not None or not names):
        output.exit_with(
            "--skip needs the names of halted topics or partitions, and takes no --flow", output.EXIT_USAGE
        )
    if not skip:
        ended = read_json(f"{url}/v1/unpause", {"names": names or [], "flow": flow, "source": source})
        if ended["scopes"] or not names:
            _say_resumed(ended, json=json)
            return
    document = read_json(f"{url}/v1/resume", {"names": names or [], "source": source, "skip": skip})
    if json:
        output.print_json(document)
    else:
        output.say(table_of_gaps(document["gaps"]))
    if not skip:
        output.exit_with("nothing was skipped; to record these gaps and continue behind them, add --skip")


def _say_resumed(document: Mapping[str, Any], *, json: bool) -> None:
    if json:
        output.print_json(document)
    for scope in () if json else document["scopes"]:
        output.say(f"resumed: {scope_text(scope)}")
    if not document["scopes"]:
        output.exit_with("nothing of that name is paused; `pipeline mirror status` lists the pauses")


def scope_text(scope: Mapping[str, Any]) -> str:
    """Return what a pause holds, in words."""
    if scope["flow"] is not None:
        return f"flow {scope['flow']}"
    if scope["topic"] is None:
        return f"source {scope['source']}"
    number = "" if scope["partition"] is None else f"-{scope['partition']}"
    return f"{scope['topic']}{number} of {scope['source']}"
