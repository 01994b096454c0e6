"""Processes that come of one that a test started, found by an environment variable that all of them inherit."""

import contextlib
from pathlib import Path
from typing import Any

MARK = "PIPELINE_TEST_MARK"


def marked(mark: Any) -> dict[int, str]:
    """Command lines of the processes that inherited the mark, by process id; without those that have ended."""
    found = {}
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found
