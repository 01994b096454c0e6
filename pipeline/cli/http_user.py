"""`pipeline http-user`: users of the HTTP servers, in the file that `http.users.file` names."""

import base64
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.files import read_text
from pipeline.errors import ConfigurationError
from pipeline.net.http.users import (
    CERTIFICATE,
    SALT_BYTES,
    SHA256,
    TOKEN_BYTES,
    Role,
    certificate_entry,
    is_name,
    password_entry,
    token_entry,
)

PASSWORD_VARIABLE = "PIPELINE_HTTP_PASSWORD"

File = Annotated[Path, typer.Argument(metavar="FILE", help="File of users, which is written if there is none.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
RoleName = Annotated[str, typer.Option("--role", metavar="ROLE", help="Rights of the user: read, write or admin.")]
Token = Annotated[bool, typer.Option("--token", help="Make a token, and print it, instead of asking for a password.")]
Certificate = Annotated[
    bool, typer.Option("--certificate", help="Let the user in by a certificate that stands for NAME, without password.")
]
Remove = Annotated[bool, typer.Option("--remove", help="Remove the user, with password, tokens and certificate.")]


def http_user(
    file: File,
    name: Name,
    role: RoleName = "read",
    token: Token = False,
    certificate: Certificate = False,
    remove: Remove = False,
) -> None:
    """Give a user of the HTTP servers a password, a token or a role with a certificate, or remove the user.

    The password is asked for, or taken from PIPELINE_HTTP_PASSWORD. Servers read the changed file within 10 seconds.
    """
    if not is_name(name):
        raise ConfigurationError("NAME", "may not hold white space, : or #")
    if role not in {str(each) for each in Role}:
        raise ConfigurationError("--role", f"is {role}, must be read, write or admin")
    if token and certificate:
        raise ConfigurationError("--certificate", "excludes --token: give one of both")
    lines = read_text(file).splitlines() if file.exists() else []
    if remove:
        kept = [line for line in lines if not _is_of(line, name)]
        if len(kept) == len(lines):
            raise ConfigurationError("NAME", f"{file} has no user {name}")
        write_private(file, kept)
        output.say(f"Removed {name}.")
    elif token:
        made = base64.urlsafe_b64encode(os.urandom(TOKEN_BYTES)).decode().rstrip("=")
        write_private(file, [*lines, token_entry(name, Role[role.upper()], made)])
        output.say(made)
    elif certificate:
        kept = [line for line in lines if not _is_of(line, name) or _kind(line) != CERTIFICATE]
        write_private(file, [*kept, certificate_entry(name, Role[role.upper()])])
        output.say(f"{name} has role {role} with a certificate.")
    else:
        entry = _entry_of_password(name, Role[role.upper()])
        kept = [line for line in lines if not _is_of(line, name) or _kind(line) in {SHA256, CERTIFICATE}]
        write_private(file, [*kept, entry])
        output.say(f"{name} has role {role}.")


def write_private(path: Path, lines: list[str]) -> None:
    """Replace a file at once; a new one is read by its owner alone. Raises ConfigurationError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            _keep_readers(file.fileno(), path)
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigurationError("FILE", f"{path} cannot be written: {error.strerror}") from error


def _keep_readers(descriptor: int, path: Path) -> None:
    """Give a new file the owner and mode of the one that it replaces: a service may have a user of its own."""
    with suppress(FileNotFoundError):
        before = path.stat()
        with suppress(PermissionError):
            os.fchown(descriptor, before.st_uid, before.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _entry_of_password(name: str, role: Role) -> str:
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        password = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    try:
        return password_entry(name, role, password, os.urandom(SALT_BYTES))
    except ValueError as error:
        raise ConfigurationError(PASSWORD_VARIABLE, str(error)) from None


def _is_of(line: str, name: str) -> bool:
    return line.strip().partition(":")[0] == name


def _kind(line: str) -> str:
    """Return the beginning of what an entry keeps: `$sha256$`, `$certificate$` or `$scrypt$`."""
    return "$".join(line.strip().split(":", 2)[-1].split("$")[:2]) + "$"
