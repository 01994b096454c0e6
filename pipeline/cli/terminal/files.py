"""Files and directories that users name: read, or held for one command, with errors of one line."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import ConfigurationError

LOCK_NAME = ".lock"


def read_text(path: Path) -> str:
    """Return the text of a file, without a byte order mark. Raises ConfigurationError if it is no UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(str(path), "is not UTF-8 text") from error


def require_readable(path: Path) -> None:
    """Raise ConfigurationError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.read(0)
    except OSError as error:
        raise ConfigurationError(str(path), f"cannot be read: {error.strerror}") from error


def is_file(path: Path) -> bool:
    """True for a file; False also for an impossible name."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_directory(path: Path) -> bool:
    """True for a directory; False also for an impossible name."""
    try:
        return path.is_dir()
    except OSError:
        return False


@contextmanager
def held_alone(directory: Path) -> Iterator[None]:
    """Create a directory if needed, and lock it for this process; the lock ends with the process.

    Raises ConfigurationError if the directory cannot be used, or with the process that holds it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK_NAME).open("a+", encoding="ascii")
    except OSError as error:
        raise ConfigurationError("--dir", f"{directory} cannot be used: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise ConfigurationError("--dir", f"{directory} is in use by process {file.read().strip()}") from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
