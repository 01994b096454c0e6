"""Answers whose memory is claimed: sent in order, in turns, with what the client took noted."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio.testing

from pipeline.model import FileRegion
from pipeline.net.claimed_sending import send_claimed
from pipeline.net.request_memory import MIN_BYTES_PER_CHECK, Claim
from pipeline.net.transport import Piece, SocketTransport
from tests.support.sockets import tcp_pair

DEADLINE_S = 60


class Recorder(SocketTransport):
    """What was sent at a time, with the bytes that were noted before, and the turns that others had."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.sent: list[tuple[int, list[Piece]]] = []
        self.turns = 0

    async def send(self, pieces: Sequence[Piece]) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append((self.claim.moved_bytes, list(pieces)))

    async def give_way(self) -> None:
        await trio.lowlevel.checkpoint()
        self.turns += 1


async def send_to_recorder(pieces: Sequence[Piece]) -> Recorder:
    claim = Claim()
    recorder = Recorder(claim)
    await send_claimed(recorder, pieces, claim)
    assert claim.moved_bytes == sum(map(len, pieces))
    return recorder


async def test_many_small_pieces_are_sent_together_with_turns_for_others_in_between() -> None:
    pieces = [bytes([number % 251]) * 100 for number in range(10_000)]
    recorder = await send_to_recorder(pieces)
    assert [piece for _, some in recorder.sent for piece in some] == pieces
    assert len(recorder.sent) == recorder.turns == 16
    assert all(sum(map(len, some)) < MIN_BYTES_PER_CHECK + 100 for _, some in recorder.sent)


async def test_large_pieces_are_cut_and_what_the_client_took_is_noted_after_each(tmp_path: Path) -> None:
    memory = bytes(range(250)) * 1000
    with (tmp_path / "file").open("w+b") as file:
        region = FileRegion(file, 7, 10 * MIN_BYTES_PER_CHECK + 1)
        recorder = await send_to_recorder([memory, region, b"end"])
    sent = [piece for _, some in recorder.sent for piece in some]
    regions = [piece for piece in sent if isinstance(piece, FileRegion)]
    assert b"".join(bytes(piece) for piece in sent if not isinstance(piece, FileRegion)) == memory + b"end"
    assert [piece.position for piece in regions] == [7 + start * MIN_BYTES_PER_CHECK for start in range(11)]
    assert sum(map(len, regions)) == len(region)
    assert all(sum(map(len, some)) < 2 * MIN_BYTES_PER_CHECK for _, some in recorder.sent)
    noted = [moved for moved, _ in recorder.sent]
    assert noted == sorted(noted)
    assert len(set(noted)) == len(noted)


@pytest.mark.parametrize("size", [1, 5000])
async def test_an_answer_arrives_as_it_is(tmp_path: Path, size: int) -> None:
    client, server = tcp_pair()
    content = bytes(range(251)) * 4000
    pieces: list[Piece] = []
    with (tmp_path / "file").open("w+b") as file, client:
        file.write(content)
        file.flush()
        for number in range(200):
            pieces += [content[number : number + 70], FileRegion(file, number, size)]
        transport, received = SocketTransport(server), bytearray()

        async def receive() -> None:
            client.setblocking(False)
            while True:
                await trio.lowlevel.wait_readable(client)
                if not (some := client.recv(1 << 16)):
                    return
                received.extend(some)

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                await send_claimed(transport, pieces, Claim())
                transport.close()
    expected = b"".join(content[number : number + 70] + content[number : number + size] for number in range(200))
    assert received == expected
