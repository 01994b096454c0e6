"""The C library's heap of this process.

glibc gives each thread its own heap, and keeps memory that is freed there: large requests that threads decoded and
answered left a broker 80 MB larger for the rest of its life. In one heap the next request uses the memory that the last
one freed, and free memory at the heap's end returns to the system. Threads of Python seldom allocate at the same time.
"""

import ctypes

_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
"""Numbers of the options in glibc's malloc.h."""
_LARGE_BYTES = 1 << 20
_KEPT_BYTES = 16 << 20
"""Free memory at the heap's end that stays. With glibc's 128 KiB each array there is taken from the system anew."""


def keep_one_heap() -> None:
    """Have all threads share one heap. Call before threads start. Does nothing without glibc."""
    _set_option(_M_ARENA_MAX, 1)


def free_large_blocks() -> None:
    """Have large arrays return to the system when they are freed. Does nothing without glibc.

    By default glibc keeps blocks of up to 32 MiB in its heap once it has seen a few: gaps that no other array fits.
    """
    _set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    _set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def return_free_memory() -> None:
    """Return free memory of the heap to the system, also between blocks in use. Takes milliseconds. Only with glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _set_option(number: int, value: int) -> None:
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(number, value)
