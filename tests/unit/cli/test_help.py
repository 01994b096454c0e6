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


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "pipeline")
def test_help_is_there(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"])
    assert shown.exit_code == 0
    assert shown.output.startswith("Usage: ")
    assert COMMANDS[path].help
    for parameter in COMMANDS[path].params:
        if parameter.param_type_name == "option":
            assert parameter.help, f"{' '.join(path)} {parameter.name}"
