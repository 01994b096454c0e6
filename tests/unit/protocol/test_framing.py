import os
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ProtocolError
from pipeline.protocol.framing import (
    FIRST_BYTES,
    FIRST_FACTOR,
    LARGEST_SHARED_BYTES,
    LEAST_ARRIVED_BYTES,
    SHARED_BYTES,
    FrameBuffer,
    receive_buffer,
)
from pipeline.protocol.spare_buffers import KEPT_BYTES, SpareBuffers

MAX = 8 * 1024 * 1024


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def parked_bytes(buffer: FrameBuffer) -> int:
    """Size of the buffer's own memory for an incomplete small frame."""
    return 0 if buffer._buffer is buffer._shared else len(buffer._buffer)


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


def feed_some(buffer: FrameBuffer, data: bytes) -> list[bytes]:
    """As much of the data as the buffer takes at once, then room for others; the rest follows."""
    frames = []
    while data:
        target = buffer.get_buffer()
        count = min(len(target), len(data))
        target[:count] = data[:count]
        buffer.bytes_received(count)
        data = data[count:]
        while (taken := buffer.next_frame()) is not None:
            frames.append(bytes(taken[0]))
    buffer.park()
    return frames


@settings(max_examples=60)
@given(
    sizes=st.lists(
        st.one_of(
            st.integers(0, 300),
            st.sampled_from([20_000, LARGEST_SHARED_BYTES, LARGEST_SHARED_BYTES + 1, SHARED_BYTES, 100_000]),
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


def test_frames_arrive_one_byte_at_a_time() -> None:
    payloads = [b"", b"a", b"x" * 300, b"y" * (LARGEST_SHARED_BYTES + 7), b"z"]
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


@settings(max_examples=60)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 300, 5000, 16_000, 100_000]), min_size=1, max_size=8),
    steps=st.lists(st.sampled_from([1, 3, 7, 500, 20_000, 70_000]), min_size=3, max_size=6).filter(
        lambda steps: max(steps) >= 500
    ),
    order=st.randoms(use_true_random=False),
)
def test_many_connections_share_a_receive_buffer(sizes: list[int], steps: list[int], order: random.Random) -> None:
    """In turn, each in its own steps, parked in between."""
    shared = receive_buffer()
    payloads = [[bytes([number, index]) * (size // 2) for index, size in enumerate(sizes)] for number in range(3)]
    rests = [b"".join(map(frame, of_one)) for of_one in payloads]
    buffers = [FrameBuffer(MAX, shared) for _ in payloads]
    received: list[list[bytes]] = [[] for _ in payloads]
    while any(rests):
        number = order.choice([number for number, rest in enumerate(rests) if rest])
        step = order.choice(steps)
        received[number] += feed_some(buffers[number], rests[number][:step])
        rests[number] = rests[number][step:]
    assert received == payloads
    assert [parked_bytes(buffer) for buffer in buffers] == [0, 0, 0]


def test_a_pipelined_frame_survives_a_pause() -> None:
    shared = receive_buffer()
    buffer, other = FrameBuffer(MAX, shared), FrameBuffer(MAX, shared)
    data = frame(b"first") + frame(b"second") + frame(b"third")
    buffer.get_buffer()[: len(data)] = data
    buffer.bytes_received(len(data))
    taken = buffer.next_frame()
    assert taken is not None and bytes(taken[0]) == b"first"
    buffer.park()
    assert parked_bytes(buffer) == len(frame(b"second") + frame(b"third"))
    other.get_buffer()[:100] = b"x" * 100
    for expected in (b"second", b"third"):
        taken = buffer.next_frame()
        assert taken is not None and bytes(taken[0]) == expected
    assert buffer.next_frame() is None
    buffer.park()
    assert parked_bytes(buffer) == 0


def test_memory_follows_what_came_not_what_was_claimed() -> None:
    buffer = FrameBuffer(2**31 - 1)
    target = buffer.get_buffer()
    target[:4] = struct.pack(">i", 2**31 - 1)
    buffer.bytes_received(4)
    assert buffer.next_frame() is None
    received = 0
    while received < 5 * FIRST_BYTES:
        growth = buffer.growth
        assert growth <= FIRST_FACTOR * received if received < FIRST_BYTES else growth <= received
        assert growth == 0 or received >= LEAST_ARRIVED_BYTES
        count = min(len(buffer.get_buffer()), 1000)
        buffer.bytes_received(count)
        received += count
        assert buffer.next_frame() is None
        buffer.park()
        assert parked_bytes(buffer) <= LEAST_ARRIVED_BYTES + 1000


@pytest.mark.parametrize("size", [-1, -(2**31), MAX + 1, 2**31 - 1])
def test_a_frame_of_impossible_size_is_refused(size: int) -> None:
    buffer = FrameBuffer(MAX)
    buffer.get_buffer()[:4] = struct.pack(">i", size)
    buffer.bytes_received(4)
    with pytest.raises(ProtocolError):
        buffer.next_frame()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_memory_of_a_spare_buffer_follows_what_came_and_returns_when_it_is_freed() -> None:
    buffer = FrameBuffer(2**30, spare=SpareBuffers())
    before = resident_bytes()
    buffer.get_buffer()[:4] = struct.pack(">i", 2**30)
    buffer.bytes_received(4)
    received = 0
    while received < 64 * FIRST_BYTES:
        assert buffer.next_frame() is None
        target = buffer.get_buffer()[:FIRST_BYTES]
        target[:] = bytes(len(target))
        buffer.bytes_received(len(target))
        received += len(target)
        assert resident_bytes() - before < 2 * received + 8 * FIRST_BYTES
    assert resident_bytes() - before > received // 2
    del target, buffer
    assert resident_bytes() - before < 8 * FIRST_BYTES


def test_frames_in_spare_buffers_come_out_as_they_went_in() -> None:
    sizes = (LARGEST_SHARED_BYTES + 1, KEPT_BYTES, KEPT_BYTES + 1, 5, LARGEST_SHARED_BYTES + 2)
    payloads = [random.Random(size).randbytes(size) for size in sizes]
    buffer = FrameBuffer(2 * KEPT_BYTES, spare=SpareBuffers())
    assert feed(buffer, b"".join(map(frame, payloads)), [300, 70_000, 1 << 20]) == payloads


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the other side speaks HTTP"),
        (b"GET / HTTP/1.1\r\n\r\n", "the client speaks HTTP, not Kafka's protocol: http.listen"),
        (bytes.fromhex("1603010200010001fc0303"), "the client begins TLS"),
    ],
)
def test_other_protocols_are_named(sent: bytes, told: str) -> None:
    buffer = FrameBuffer(MAX)
    with pytest.raises(ProtocolError, match=told):
        feed(buffer, sent, [100])
