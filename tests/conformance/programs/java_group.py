"""A member of a consumer group of Java's, which takes this process over: see tests/support/GroupMember.java."""

import json
import os
from typing import Any

from exchange import main


def member(bootstrap: Any, asked: Any) -> Any:
    """Become the Java program; it writes what it found."""
    command = [*asked["java"], bootstrap, json.dumps(asked)]
    os.execv(command[0], command)


if __name__ == "__main__":
    main({"member": member})
