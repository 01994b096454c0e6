"""Page cache: tells if bytes of a file are cached, and has a thread read them if they are not.

`sendfile` of bytes that are not cached waits for the disk, and the whole process with it. So they are tried with
RWF_NOWAIT first (Linux 4.14), and read by a thread if they are not cached. A file system that does not know the flag
counts as always cached. Each device has READERS threads: a device that hangs holds up no reads from others.
"""

import errno
import os
from collections import defaultdict
from functools import partial

import trio

from pipeline.model import FileRegion

CHUNK_BYTES = 1024 * 1024
"""Bytes that are checked, read and sent at a time."""
SMALL_BYTES = 128 * 1024
"""Size below which a cached first byte means that all are: read-ahead is as large."""
READERS = 8
_READ_BYTES = 256 * 1024
_READERS_OF_DEVICE: defaultdict[int, trio.CapacityLimiter] = defaultdict(partial(trio.CapacityLimiter, READERS))
_PROBE = bytearray(1)
"""The byte that is read to see if it is cached."""


def is_cached(descriptor: int, position: int, size: int) -> bool:
    """True if `size` bytes from `position` on can be read without waiting, judged by the first and the last byte."""
    try:
        os.preadv(descriptor, (_PROBE,), position, os.RWF_NOWAIT)
        if size > SMALL_BYTES:
            os.preadv(descriptor, (_PROBE,), position + size - 1, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def read_cached(region: FileRegion) -> bytearray | None:
    """Return the bytes of a small region; None if some are not cached or beyond the file's end. Raises OSError."""
    descriptor, found = region.file.fileno(), bytearray(region.size)
    try:
        read = os.preadv(descriptor, (found,), region.position, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        read = os.preadv(descriptor, (found,), region.position)
    return found if read == region.size else None


async def read_into_cache(region: FileRegion) -> None:
    """Have a thread read the region, and wait until it has."""
    limiter = _READERS_OF_DEVICE[device_of(region)]
    await trio.to_thread.run_sync(_read, region, limiter=limiter, abandon_on_cancel=True)


def device_of(region: FileRegion) -> int:
    """Return the number of the device that holds the region's file."""
    return os.fstat(region.file.fileno()).st_dev


def _read(region: FileRegion) -> None:
    descriptor, end = region.file.fileno(), region.position + region.size
    os.posix_fadvise(descriptor, region.position, region.size, os.POSIX_FADV_WILLNEED)
    buffer = memoryview(bytearray(min(region.size, _READ_BYTES)))
    position = region.position
    while position < end:
        read = os.preadv(descriptor, (buffer[: end - position],), position)
        if not read:
            return
        position += read
