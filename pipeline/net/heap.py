"""The C library's heap of this process.

glibc gives each thread a heap of its own, and keeps what is freed there: large requests that a thread decoded, or whose
answers it encoded, left a broker 80 MB larger than it was before, for as long as it lived. In one heap the next request
uses what the one before has freed, and what is free at its end goes back to the system. Threads of Python seldom
allocate at the same time.
"""

import ctypes
from collections.abc import Callable

_M_ARENA_MAX = -8
"""The number of the option in glibc's malloc.h."""


_library = ctypes.CDLL(None)
_set_option: Callable[[int, int], int] | None = getattr(_library, "mallopt", None)


def keep_one_heap() -> None:
    """Have all threads share one heap. Call before there are threads; without glibc nothing happens."""
    if _set_option is not None:
        _set_option(_M_ARENA_MAX, 1)
