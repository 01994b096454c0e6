import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import trio

from pipeline.model import FileRegion
from pipeline.net.page_cache import CHUNK_BYTES, is_cached, read_into_cache
from pipeline.net.transport import SocketTransport

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


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


async def test_what_was_read_is_cached(cold_file: IO[bytes]) -> None:
    await read_into_cache(FileRegion(cold_file, 10, CHUNK_BYTES))
    assert is_cached(cold_file.fileno(), 10, CHUNK_BYTES)
    await read_into_cache(FileRegion(cold_file, len(CONTENT) - 5, 100))
    assert is_cached(cold_file.fileno(), len(CONTENT) - 5, 5)


@pytest.mark.parametrize("size", [1, 100_000, CHUNK_BYTES + 1, 4 * CHUNK_BYTES])
async def test_cold_regions_arrive_as_they_are(cold_file: IO[bytes], size: int) -> None:
    ours, theirs = tcp_pair()
    regions = [FileRegion(cold_file, 7, size), FileRegion(cold_file, 1000, size)]
    expected = b"".join(CONTENT[region.position : region.position + size] for region in regions)
    sender, receiver = SocketTransport(ours), SocketTransport(theirs)
    received = bytearray()
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.send, [b"head", *regions, b"tail"])
            buffer = memoryview(bytearray(100_000))
            while len(received) < len(expected) + 8:
                count = await receiver.receive_into(buffer)
                received += buffer[:count]
    assert received == b"head" + expected + b"tail"
    sender.close()
    receiver.close()


def test_the_end_of_a_file_is_not_waited_for(cold_file: IO[bytes]) -> None:
    assert is_cached(cold_file.fileno(), len(CONTENT) + 10, 10)
