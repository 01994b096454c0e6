"""Waits of a connection for what its peer has to send."""

import trio
import trio.testing

from pipeline.net.transport import AWAITED_BYTES, SocketTransport
from tests.support.sockets import tcp_pair

DEADLINE_S = 60


async def test_a_receiver_waits_for_what_is_due_and_no_longer() -> None:
    ours, theirs = tcp_pair()
    sender, receiver = SocketTransport(ours), SocketTransport(theirs)
    buffer = memoryview(bytearray(2 * AWAITED_BYTES))
    counts: list[int] = []

    async def receive(due: int) -> None:
        counts.append(await receiver.receive_into(buffer, due))

    with trio.fail_after(DEADLINE_S):
        for due, first in ((300_000, 100_000), (AWAITED_BYTES, 50_000), (2, 1)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive, due)
                await trio.testing.wait_all_tasks_blocked()
                await sender.send([bytes(first)])
                await trio.testing.wait_all_tasks_blocked(0.05)
                await sender.send([bytes(due - first)])
            assert counts.pop() == due
        for due in (1, 300_000):  # a byte, and what came before the end
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive, due)
                await trio.testing.wait_all_tasks_blocked()
                await sender.send([b"x"])
                if due > 1:
                    sender.close()
            assert counts.pop() == 1
        assert await receiver.receive_into(buffer, 300_000) == 0
    receiver.close()
