"""Memory of a client's large frames, which later frames use again.

The kernel clears each page of new memory. For a consumer that copies much, that takes longer than the copying. Such a
consumer has a few frames in memory at a time, so the next one finds the memory of an earlier one.

Invariants:
- Memory is used again only if nobody has a view of it: then, and only then, `mmap.resize` raises no BufferError.
- Memory follows the bytes received, as the kernel gives a page when it is first written to.
- A system that cannot resize mappings (SystemError) uses no memory again, and keeps one buffer at most.
- At most `KEPT_BUFFERS` of at most `KEPT_BYTES` stay when nobody uses them. All other memory returns to the system.
"""

import mmap
from contextlib import suppress

KEPT_BUFFERS = 12
KEPT_BYTES = 4 * 1024 * 1024
"""Size of the largest frame whose memory is kept. Larger ones are rare, and get huge pages."""


class SpareBuffers:
    """Buffers for any number of connections of one thread."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []

    def take(self, size: int) -> memoryview:
        """Return memory of `size` bytes, with any content. It is in use as long as this view or a part of it lives."""
        if size > KEPT_BYTES:
            return memoryview(_mapped(size, with_huge_pages=True))
        for buffer in self._kept:
            try:
                buffer.resize(max(size, len(buffer)))
            except BufferError:
                continue
            except SystemError:
                self._kept.clear()
                break
            return memoryview(buffer)[:size]
        buffer = _mapped(size)
        if len(self._kept) < KEPT_BUFFERS:
            self._kept.append(buffer)
        return memoryview(buffer)


def _mapped(size: int, *, with_huge_pages: bool = False) -> mmap.mmap:
    mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if with_huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped
