"""How much of a long test `make test-long` runs: a part that an evening has time for, or all of it with SIZE=full."""

import os
from typing import Final

SIZES: Final = ("usual", "full")


def size_named(name: str) -> str:
    """Return the name of a size. Raises ValueError for another name, as a long run of the wrong size is lost time."""
    if name not in SIZES:
        raise ValueError(f"SIZE is {name}: it has to be one of {', '.join(SIZES)}")
    return name


SIZE: Final = size_named(os.environ.get("SIZE") or SIZES[0])


def size(usual: int, full: int) -> int:
    """Return how many seeds, kills or cases a long test has."""
    return full if SIZE == "full" else usual
