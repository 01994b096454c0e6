"""The C library's heap of this process.

glibc gives each thread its own heap, and keeps memory that is freed there: large requests that threads decoded and
answered left a broker 80 MB larger for the rest of its life. In one heap the next request uses the memory that the last
one freed, and free memory at the heap's end returns to the system. Threads of Python seldom allocate at the same time.
"""

import ctypes

_M_ARENA_MAX = -8
"""Number of the option in glibc's malloc.h."""


def keep_one_heap() -> None:
    """Have all threads share one heap. Call before threads start. Does nothing without glibc."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)
