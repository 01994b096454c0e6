"""What the client programs share: one JSON object on standard input, one on standard output; bytes as base64.

`main(COMMANDS)` runs `python <client>.py COMMAND BOOTSTRAP`: the command gets the address and the object it was given.
"""

import base64
import json
import sys
import time
from typing import Any

DEADLINE_S = 180


def main(commands: Any) -> None:
    name, bootstrap = sys.argv[1:]
    asked = json.loads(sys.stdin.readline())
    json.dump(commands[name](bootstrap, asked), sys.stdout)


def encoded(data: Any) -> Any:
    return None if data is None else base64.b64encode(data).decode()


def decoded(text: Any) -> Any:
    return None if text is None else base64.b64decode(text)


def read_record(record: Any) -> Any:
    """Key, value, headers, timestamp from JSON."""
    key, value, headers, timestamp_ms = record
    return decoded(key), decoded(value), [(name, decoded(data)) for name, data in headers], timestamp_ms


def write_record(offset: Any, key: Any, value: Any, headers: Any, timestamp_ms: Any) -> Any:
    """What a reader tells of one record."""
    return [offset, encoded(key), encoded(value), [[name, encoded(data)] for name, data in headers], timestamp_ms]


def was_told_to_stop(seen: Any = []) -> Any:  # noqa: B006
    """True once standard input has ended; asked again and again, never waits."""
    import selectors

    if not seen:
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin, selectors.EVENT_READ)
            if selector.select(0) and not sys.stdin.readline():
                seen.append(True)
    return bool(seen)


class Deadline:
    """Raises when what is waited for does not happen."""

    def __init__(self, what: Any, seconds: Any = DEADLINE_S) -> None:
        self.what, self.end = what, time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self.end:
            raise TimeoutError(f"{self.what} did not happen in time")
