"""`pipeline completion`: scripts with which shells complete commands and options."""

from enum import StrEnum
from typing import Annotated

import typer

from pipeline.cli.terminal import output


class Shell(StrEnum):
    """Shells with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell.")]) -> None:
    """Print the completion script of a shell.

    bash: eval "$(pipeline completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc, after compinit; fish:
    pipeline completion fish > ~/.config/fish/completions/pipeline.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="pipeline", complete_var="_PIPELINE_COMPLETE", shell=shell.value)
    output.say(script)
