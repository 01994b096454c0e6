"""Commands that the pages tell a reader to give, held to the options and arguments that the command line takes."""

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import typer

from pipeline.cli.main import app

PROGRAM = "pipeline"
LEFT_OUT = "..."
"""Stands for arguments that a page leaves out."""


def commands_of(page: str) -> Iterator[list[str]]:
    """Return the words of each `pipeline` command in a page's blocks, without the program's name.

    Lines that the shell would read on after their end, as of a quoted text of many lines, are left out.
    """
    for line in page.replace("\\\n", " ").splitlines():
        if line.startswith("    "):
            for words in _simple_commands(re.sub(r"\$\([^()]*\)|'[|;&<>]+'", "VALUE", line)):
                given = words[words.index(PROGRAM) + 1 :] if PROGRAM in words else []
                if given and not given[0].startswith("-"):
                    yield given


def _simple_commands(line: str) -> Iterator[list[str]]:
    """Return the words of the commands that a line of the shell has, and of the files that they read and write."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(lexer.punctuation_chars):
                yield words[:-1] if words[-1:] == ["2"] else words
                words = []
            else:
                words.append(word)
    except ValueError:
        return
    yield words


@cache
def _program() -> Any:
    return typer.main.get_command(app)


def command_faults(words: Sequence[str]) -> list[str]:
    """Return what the command line would refuse of a command: a command, an option or an argument, too many or missing.

    Values of options are not looked at.
    """
    command: Any = _program()
    line, left = " ".join(words), list(words)
    while hasattr(command, "commands"):
        if not left or left[0] not in command.commands:
            return [f"{line}: there is no such command"]
        command = command.commands[left.pop(0)]
    is_whole = LEFT_OUT not in words
    with command.context_class(command) as context:
        try:
            given, left, _ = command.make_parser(context).parse_args(left)
        except Exception as error:  # click's own errors, of the copy that typer has of it
            return [f"{line}: {error}"]
    missing = [each.name for each in command.params if each.required and is_whole and not given.get(each.name)]
    return [f"{line}: {name} is missing" for name in missing] + [
        f"{line}: {word} is too many" for word in left if word != LEFT_OUT
    ]
