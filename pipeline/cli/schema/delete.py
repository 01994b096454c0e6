"""`pipeline schema delete`: delete a subject or a version, softly or for good."""

import sys
from typing import Annotated

import typer

from pipeline.cli.schema.access import Subject, Url, with_registry
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json
from pipeline.errors import ConfigurationError


def delete_schema(
    subject: Subject,
    url: Url,
    version: Annotated[int | None, typer.Option(min=1, help="Version number. Default: all versions.")] = None,
    permanent: Annotated[
        bool,
        typer.Option(
            "--permanent", help="Delete for good what was deleted before: its data can then no longer be read."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask. Needed where there is no terminal.")] = False,
    json: Json = False,
) -> None:
    """Delete a subject or one of its versions. Data that was written with it stays readable, unless --permanent."""
    what = subject if version is None else f"{subject} version {version}"
    if not yes:
        _confirm(f"Delete {output.printable(what)}{' for good' if permanent else ''}?")
    if version is None:
        numbers = with_registry(url, lambda registry: registry.delete_subject(subject, permanent=permanent))
    else:
        numbers = [with_registry(url, lambda registry: registry.delete_version(subject, version, permanent=permanent))]
    if json:
        output.print_json({"subject": subject, "versions": numbers, "permanent": permanent})
    else:
        listed = ", ".join(map(str, numbers))
        kind = "version" if len(numbers) == 1 else "versions"
        output.say(f"Deleted {subject} {kind} {listed}{' for good' if permanent else ''}.")


def _confirm(question: str) -> None:
    """Ask on the terminal. Ends the command with exit code 1 for no; raises ConfigurationError without a terminal."""
    if not sys.stdin.isatty():
        raise ConfigurationError("--yes", "is missing: there is no terminal to ask on")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        output.exit_with("nothing was deleted")
