"""How much of a long test `make test-long` runs: a part that an evening has time for, or all of it with SIZE=full."""

import os
from typing import Final

SIZE: Final = os.environ.get("SIZE", "usual")


def size(usual: int, full: int) -> int:
    """Return how many seeds, kills or cases a long test has."""
    return full if SIZE == "full" else usual
