"""Files and directories that users name: read, or held for one command alone, with errors of one line."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import ConfigurationError

LOCK_NAME = ".lock"


def read_text(path: Path) -> str:
    """The text of a file. Raises ConfigurationError when it cannot be read or is no UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(str(path), "is not UTF-8 text") from error


def require_readable(path: Path) -> None:
    """Raises ConfigurationError when the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.read(0)
    except OSError as error:
        raise ConfigurationError(str(path), f"cannot be read: {error.strerror}") from error


def is_file(path: Path) -> bool:
    """Return True for a file; False too for a name that no file can have."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_directory(path: Path) -> bool:
    """Return True for a directory; False too for a name that none can have."""
    try:
        return path.is_dir()
    except OSError:
        return False


@contextmanager
def held_alone(directory: Path) -> Iterator[None]:
    """Hold a directory for this process, making it if need be; the lock ends with the process, however that ends.

    Raises ConfigurationError when it cannot be used, or naming the process that holds it.
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
