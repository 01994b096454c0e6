import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ProtocolError
from pipeline.protocol.framing import FIRST_BYTES, LARGE_FRAME_BYTES, SHARED_BYTES, FrameBuffer

MAX = 8 * 1024 * 1024


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def feed(buffer: FrameBuffer, data: bytes, steps: list[int]) -> list[bytes]:
    """Receives the data in steps of these sizes (again and again), takes frames after each."""
    frames = []
    position = step = 0
    while position < len(data):
        target = buffer.get_buffer()
        assert len(target) > 0
        count = min(len(target), steps[step % len(steps)], len(data) - position)
        target[:count] = data[position : position + count]
        buffer.bytes_received(count)
        position += count
        step += 1
        while (taken := buffer.next_frame()) is not None:
            frames.append(bytes(taken[0]))
    return frames


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(
        st.one_of(
            st.integers(0, 300),
            st.sampled_from([LARGE_FRAME_BYTES - 1, LARGE_FRAME_BYTES, LARGE_FRAME_BYTES + 1, SHARED_BYTES, 100_000]),
        ),
        max_size=12,
    ),
    steps=st.lists(st.sampled_from([1, 3, 4, 5, 100, 5000, 1 << 20]), min_size=1, max_size=5).filter(
        lambda steps: max(steps) >= 100
    ),
)
def test_frames_come_out_as_they_went_in(sizes: list[int], steps: list[int]) -> None:
    payloads = [bytes([index % 251]) * size for index, size in enumerate(sizes)]
    assert feed(FrameBuffer(MAX), b"".join(map(frame, payloads)), steps) == payloads


def test_one_byte_at_a_time() -> None:
    payloads = [b"", b"a", b"x" * 300, b"y" * (LARGE_FRAME_BYTES + 7), b"z"]
    assert feed(FrameBuffer(MAX), b"".join(map(frame, payloads)), [1]) == payloads


def test_a_large_frame_keeps_its_buffer() -> None:
    buffer = FrameBuffer(MAX)
    first = frame(b"a" * 100_000)
    kept = None
    position = 0
    while kept is None:
        target = buffer.get_buffer()
        count = min(len(target), len(first) - position)
        target[:count] = first[position : position + count]
        buffer.bytes_received(count)
        position += count
        kept = buffer.next_frame()
    view, shared = kept
    assert not shared and not view.readonly
    assert feed(buffer, frame(b"b" * 100_000), [1 << 20]) == [b"b" * 100_000]
    assert bytes(view) == b"a" * 100_000


def test_memory_follows_what_came_not_what_was_claimed() -> None:
    buffer = FrameBuffer(2**31 - 1)
    target = buffer.get_buffer()
    target[:4] = struct.pack(">i", 2**31 - 1)
    buffer.bytes_received(4)
    assert buffer.next_frame() is None
    received = 0
    while received < 5 * FIRST_BYTES:
        target = buffer.get_buffer()
        assert len(target) <= max(FIRST_BYTES, received)
        buffer.bytes_received(len(target))
        received += len(target)
        assert buffer.next_frame() is None


@pytest.mark.parametrize("size", [-1, -(2**31), MAX + 1, 2**31 - 1])
def test_a_frame_of_impossible_size_is_refused(size: int) -> None:
    buffer = FrameBuffer(MAX)
    buffer.get_buffer()[:4] = struct.pack(">i", size)
    buffer.bytes_received(4)
    with pytest.raises(ProtocolError):
        buffer.next_frame()
