"""Who may restart servers of a datacenter now: one run of a playbook at a time, and one after the other.

Usage: turn.py FILE take OWNER SECONDS | turn.py FILE give OWNER

Exit code 1: another one has the turn, and stderr says who. `take` by the owner renews it. It ends SECONDS after it was
taken or renewed last, by a clock that nobody sets, for runs that were killed; and when this host boots.
"""

import fcntl
import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Take the turn, or give it back."""
    path, action, owner, *seconds = sys.argv[1:]
    with Path(path).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the process ends: looking and writing are one step
        file.seek(0)
        holder, until_s = _read(file.read())
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        if holder not in ("", owner) and now_s < until_s:
            sys.exit(
                f"{holder} restarts servers of this datacenter, for at most {until_s - now_s:.0f} s without a sign of "
                f"it. If that run was killed, remove {path} of {os.uname().nodename}"
            )
        file.truncate(0)
        if action == "take":
            file.write(json.dumps([owner, now_s + float(seconds[0])]))


def _read(text: str) -> tuple[str, float]:
    """Return who has the turn, and until when; "" if nobody."""
    try:
        holder, until_s = json.loads(text)
        return str(holder), float(until_s)
    except (ValueError, TypeError):
        return "", 0.0  # a disk that is full: nobody's name was written


main()
