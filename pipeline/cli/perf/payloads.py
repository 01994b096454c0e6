"""Values of the records of a performance test: letters at random, or the lines of a file."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from pipeline.errors import ConfigurationError

MANY = 1000
MANY_BYTES = 16 << 20
MAX_FILE_BYTES = 256 << 20
_LETTERS = bytes(ord("A") + number % 26 for number in range(256))


def random_payloads(size: int, rng: Random) -> Sequence[bytes]:
    """Return values of letters, as different ones as a few MiB hold."""
    count = max(1, min(MANY, MANY_BYTES // size))
    return [rng.randbytes(size).translate(_LETTERS) for _ in range(count)]


def read_payloads(path: Path) -> Sequence[bytes]:
    """Return the lines of a file. Raises ConfigurationError if it cannot be read, has no line, or is very large."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(str(path), f"cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigurationError(str(path), f"has more than {MAX_FILE_BYTES >> 20} MiB")
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    if not lines:
        raise ConfigurationError(str(path), "is empty: the value of each record is a line of it")
    return lines
