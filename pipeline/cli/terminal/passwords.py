"""Passwords for commands: typed at a prompt, or from a file or the environment. Command lines are seen by all users."""

import getpass
import os
import sys
import unicodedata
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.terminal import output
from pipeline.credentials import Secret
from pipeline.errors import ConfigurationError

PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File that holds the password alone; - is standard input. Without an option the command asks for it.",
    ),
]
PasswordVariable = Annotated[
    str | None, typer.Option("--password-env", metavar="NAME", help="Environment variable that holds the password.")
]
MAX_PASSWORD_BYTES = 1024
STANDARD_INPUT = Path("-")


def read_new_password(file: Path | None, variable: str | None) -> Secret:
    """Return a password from its place, or ask for it twice at a terminal.

    Raises ConfigurationError if there is none, or if clients would send it in several forms.
    """
    if file is not None and variable is not None:
        raise ConfigurationError("--password-env", "is given, and so is --password-file: give one of them")
    if file is not None:
        return _checked("--password-file", _of_file(file))
    if variable is not None:
        if variable not in os.environ:
            raise ConfigurationError("--password-env", f"names {variable}, which is not set")
        return _checked("--password-env", os.environ[variable])
    if not sys.stdin.isatty():
        raise ConfigurationError("--password-file", "is missing: give it, or --password-env, where no one can type")
    return _checked("password", _asked_for())


def _of_file(path: Path) -> str:
    try:
        if path == STANDARD_INPUT:
            content = sys.stdin.buffer.read(MAX_PASSWORD_BYTES + 2)
        else:
            with path.open("rb") as file:
                content = file.read(MAX_PASSWORD_BYTES + 2)
        return content.decode().removesuffix("\n")
    except OSError as error:
        raise ConfigurationError("--password-file", f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:  # its message would show a part of the password
        raise ConfigurationError("--password-file", f"{path} is not text in UTF-8") from None


def _asked_for() -> str:
    try:
        password = getpass.getpass("Password: ", sys.stderr)
        again = getpass.getpass("Again: ", sys.stderr)
    except EOFError:
        output.exit_with("no password was typed", output.EXIT_USAGE)
    if password != again:
        output.exit_with("the two passwords differ", output.EXIT_USAGE)
    return password


def _checked(key: str, password: str) -> Secret:
    if not password:
        raise ConfigurationError(key, "holds no password")
    if len(password.encode()) > MAX_PASSWORD_BYTES:
        raise ConfigurationError(key, f"holds more than {MAX_PASSWORD_BYTES} bytes")
    require_one_form(key, password)
    return Secret(password)


def require_one_form(key: str, text: str) -> None:
    """Raise ConfigurationError unless all clients send the text alike.

    Some send a name or password as it is, others its normal form after RFC 4013.
    """
    if not text.isprintable() or unicodedata.normalize("NFKC", text) != text:
        raise ConfigurationError(key, "holds line ends, control characters, or letters that Unicode has in two forms")
