import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import trio
import trio.testing

from pipeline.model import FileRegion
from pipeline.net import page_cache
from pipeline.net import transport as transport_module
from pipeline.net.page_cache import CHUNK_BYTES, READERS, is_cached, read_cached, read_into_cache
from pipeline.net.transport import COPIED_BYTES, PIECES_AT_ONCE, SocketTransport
from pipeline.protocol.schema import Piece
from tests.support.sockets import tcp_pair

CONTENT = bytes(range(251)) * 20_000
DEADLINE_S = 60


@pytest.fixture
def cold_file(tmp_path: Path) -> Iterator[IO[bytes]]:
    with (tmp_path / "cold").open("w+b") as file:
        file.write(CONTENT)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if is_cached(file.fileno(), 0, len(CONTENT)):
            pytest.skip("this file system does not let go of its pages")
        yield file


async def test_bytes_that_were_read_are_cached(cold_file: IO[bytes]) -> None:
    await read_into_cache(FileRegion(cold_file, 10, CHUNK_BYTES))
    assert is_cached(cold_file.fileno(), 10, CHUNK_BYTES)
    await read_into_cache(FileRegion(cold_file, len(CONTENT) - 5, 100))
    assert is_cached(cold_file.fileno(), len(CONTENT) - 5, 5)


async def test_reads_of_a_device_that_hangs_hold_up_none_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, read, hanging = threading.Event(), page_cache._read, threading.Semaphore(0)

    def read_or_hang(region: FileRegion) -> None:
        if region.position == 0:
            hanging.release()
            assert released.wait(DEADLINE_S)
        read(region)

    monkeypatch.setattr(page_cache, "_read", read_or_hang)
    monkeypatch.setattr(page_cache, "device_of", lambda region: -1 if region.position == 0 else -2)
    with (tmp_path / "a").open("w+b") as file:
        file.write(CONTENT)
        file.flush()
        async with trio.open_nursery() as nursery:
            try:
                for _ in range(READERS + 1):
                    nursery.start_soon(read_into_cache, FileRegion(file, 0, 1))
                for _ in range(READERS):
                    assert await trio.to_thread.run_sync(hanging.acquire, True, DEADLINE_S)
                with trio.fail_after(DEADLINE_S):
                    await read_into_cache(FileRegion(file, 1, 1))
            finally:
                released.set()


@pytest.mark.parametrize("size", [1, COPIED_BYTES, COPIED_BYTES + 1, 100_000, CHUNK_BYTES + 1, 4 * CHUNK_BYTES])
async def test_cold_regions_arrive_as_they_are(cold_file: IO[bytes], size: int) -> None:
    ours, theirs = tcp_pair()
    regions = [FileRegion(cold_file, 7, size), FileRegion(cold_file, 1000, size)]
    expected = b"".join(CONTENT[region.position : region.position + size] for region in regions)
    sender, receiver = SocketTransport(ours), SocketTransport(theirs)
    received = bytearray()
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            pieces: list[Piece] = [b"head", *regions, b"tail"]
            nursery.start_soon(sender.send, pieces)
            buffer = memoryview(bytearray(100_000))
            while len(received) < len(expected) + 8:
                count = await receiver.receive_into(buffer)
                received += buffer[:count]
    assert received == b"head" + expected + b"tail"
    sender.close()
    receiver.close()


async def test_only_whole_cached_regions_are_copied(cold_file: IO[bytes]) -> None:
    region = FileRegion(cold_file, 10, COPIED_BYTES)
    assert read_cached(region) in (None, CONTENT[10 : 10 + COPIED_BYTES])  # asking may have had it read meanwhile
    await read_into_cache(region)
    assert read_cached(region) == CONTENT[10 : 10 + COPIED_BYTES]
    assert read_cached(FileRegion(cold_file, len(CONTENT) - 1, 2)) is None


async def test_small_regions_leave_with_what_is_around_them(tmp_path: Path) -> None:
    calls = 0

    class CountingSocket(socket.socket):
        def sendmsg(self, *args: Any) -> int:
            nonlocal calls
            calls += 1
            return super().sendmsg(*args)

    ours, theirs = tcp_pair()
    sender, receiver = SocketTransport(CountingSocket(fileno=ours.detach())), SocketTransport(theirs)
    with (tmp_path / "warm").open("w+b") as file:
        file.write(CONTENT)
        file.flush()
        await sender.send([b"head", FileRegion(file, 7, 100), b"middle", FileRegion(file, 0, COPIED_BYTES), b"tail"])
    expected = b"head" + CONTENT[7:107] + b"middle" + CONTENT[:COPIED_BYTES] + b"tail"
    received = bytearray()
    with trio.fail_after(DEADLINE_S):
        while len(received) < len(expected):
            buffer = memoryview(bytearray(100_000))
            received += buffer[: await receiver.receive_into(buffer)]
    assert received == expected
    assert calls == 1
    sender.close()
    receiver.close()


async def test_copies_of_small_regions_wait_for_the_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied_bytes = 0

    def copy(region: FileRegion) -> bytearray | None:
        nonlocal copied_bytes
        copied_bytes += region.size
        return read_cached(region)

    monkeypatch.setattr(transport_module, "read_cached", copy)
    ours, theirs = tcp_pair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sender, receiver = SocketTransport(ours), SocketTransport(theirs)
    count = 1_000
    with (tmp_path / "warm").open("w+b") as file:
        file.write(CONTENT)
        file.flush()
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                pieces: list[Piece] = [b"head", *[FileRegion(file, 0, COPIED_BYTES)] * count, b"tail"]
                nursery.start_soon(sender.send, pieces)
                await trio.testing.wait_all_tasks_blocked()
                assert copied_bytes < count * COPIED_BYTES / 2
                received, buffer = 0, memoryview(bytearray(1 << 20))
                while received < count * COPIED_BYTES + 8:
                    received += await receiver.receive_into(buffer)
    sender.close()
    receiver.close()


def test_the_end_of_a_file_is_not_waited_for(cold_file: IO[bytes]) -> None:
    assert is_cached(cold_file.fileno(), len(CONTENT) + 10, 10)


async def test_an_answer_of_very_many_pieces_gives_others_their_turn(tmp_path: Path) -> None:
    turns, client, server = 0, *tcp_pair()

    async def watch() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    with (tmp_path / "small").open("w+b") as file, client:
        file.write(CONTENT)
        file.flush()
        transport = SocketTransport(server)
        try:
            with trio.fail_after(DEADLINE_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(watch)
                    await transport.send([FileRegion(file, position, 1) for position in range(10 * PIECES_AT_ONCE)])
                    nursery.cancel_scope.cancel()
        finally:
            transport.close()
        received = b"".join(iter(lambda: client.recv(1 << 20), b""))
    assert received == CONTENT[: 10 * PIECES_AT_ONCE]
    assert turns >= 5
