"""Memory that large frames share one after the other."""

import ctypes
import mmap

import pytest

from pipeline.protocol.spare_buffers import KEPT_BUFFERS, KEPT_BYTES, SpareBuffers


def kept_bytes(spare: SpareBuffers) -> int:
    return sum(map(len, spare._kept))


def address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def test_memory_is_used_again_once_nobody_has_a_view_of_it() -> None:
    spare = SpareBuffers()
    first = spare.take(100_000)
    first[:5] = b"first"
    known = address_of(first)
    part = first[1:5]
    del first
    other = spare.take(100_000)
    assert address_of(other) != known  # a part of the first is still in use
    other[:] = b"x" * 100_000
    assert bytes(part) == b"irst"
    del part
    assert address_of(spare.take(50_000)) == known


def test_kept_memory_grows_with_the_frames() -> None:
    spare = SpareBuffers()
    for size in (100_000, 200_000, KEPT_BYTES, 10):
        view = spare.take(size)
        view[:] = bytes(size)
        assert len(view) == size
        del view
    assert kept_bytes(spare) == KEPT_BYTES


def test_only_so_much_is_kept() -> None:
    spare = SpareBuffers()
    views = [spare.take(KEPT_BYTES) for _ in range(KEPT_BUFFERS + 3)]
    views.append(spare.take(KEPT_BYTES + 1))
    assert len({address_of(view) for view in views}) == len(views)
    views.clear()
    assert kept_bytes(spare) == KEPT_BUFFERS * KEPT_BYTES


def test_a_system_that_resizes_nothing_keeps_one_buffer_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(mmap.mmap):
        def resize(self, _size: int) -> None:
            raise SystemError("mmap: resizing not available--no mremap()")

    monkeypatch.setattr("pipeline.protocol.spare_buffers.mmap.mmap", Fixed)
    spare = SpareBuffers()
    for _ in range(KEPT_BUFFERS):
        assert len(spare.take(KEPT_BYTES)) == KEPT_BYTES
        assert kept_bytes(spare) <= KEPT_BYTES
