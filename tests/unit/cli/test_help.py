"""`--help` is enough: every command and every option says what it is."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pipeline.cli.main import app

NOUNS = {
    "local", "broker", "cluster", "topic", "log", "produce", "consume", "mirror", "registry", "schema", "audit", "load",
    "demo",
}  # fmt: skip


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_the_commands_that_scripts_count_on_are_there() -> None:
    assert {path[0] for path in COMMANDS if path} >= NOUNS
    assert {("cluster", "describe"), ("cluster", "elect"), ("cluster", "reassign", "plan")} <= COMMANDS.keys()
    for noun in ("broker", "mirror", "registry", "audit"):
        assert "config" in {parameter.name for parameter in COMMANDS[noun, "start"].params}
    assert {parameter.opts[0] for parameter in COMMANDS["local", "up"].params} >= {
        "--brokers", "--port", "--dir", "--set", "--registry", "--audit", "--restart-after",
    }  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        "topic create t --partitions 2147483648",
        "topic create t --replication-factor 32768",
        "topic grow t --partitions 2147483648",
        "topic delete-records t --before 9223372036854775808",
        "topic delete-records t --partition 2147483648",
        "cluster elect --topic t --partition 2147483648",
        "group reset-offsets g --to-offset 9223372036854775808",
    ],
)
def test_a_number_that_no_request_holds_is_wrong_usage_at_once(arguments: str) -> None:
    """Such a request was tried again for 30 s, as if no broker answered."""
    shown = CliRunner().invoke(app, arguments.split())
    assert shown.exit_code == 2
    assert "less than or equal" in shown.output


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "pipeline")
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"])
    assert shown.exit_code == 0
    assert shown.output.startswith("Usage: ")
    assert COMMANDS[path].help
    for parameter in COMMANDS[path].params:
        if parameter.param_type_name == "option":
            assert parameter.help, f"{' '.join(path)} {parameter.name}"
