"""A server that goes away while a client logs in: the client comes back with its session."""

import struct
from functools import partial

import trio

from pipeline.coordination.kazoo_session import CUT_LOGIN
from pipeline.coordination.zookeeper import ZooKeeper
from pipeline.coordination.zookeeper_security import ZooKeeperSecurity

SESSION = 0x1234
SECURITY = ZooKeeperSecurity.from_settings({"zookeeper.auth.username": "b", "zookeeper.auth.password": "p"})


async def test_a_login_that_is_cut_is_no_refusal_and_keeps_the_session() -> None:
    asked: list[int] = []
    third = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        """Grant a session, and close the connection when the client begins to log in."""
        async with stream:
            request = b""
            while len(request) < 4 or len(request) < 4 + struct.unpack_from("!i", request)[0]:
                request += await stream.receive_some(4096)
            asked.append(struct.unpack_from("!q", request, 4 + 4 + 8 + 4)[0])
            answer = struct.pack("!iiqi16sB", 0, 18_000, SESSION, 16, bytes(16), 0)
            await stream.send_all(struct.pack("!i", len(answer)) + answer)
            await stream.receive_some(4096)
        if len(asked) >= 3:
            third.set()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        client = ZooKeeper(f"127.0.0.1:{port}", 18_000, 5_000, SECURITY)
        client._session.kazoo.start_async()
        with trio.fail_after(30):
            await third.wait()
        assert set(asked[1:]) == {SESSION}
        assert not client._session.is_refused
        assert not client._session.history.is_connected
        assert client._session.fault == CUT_LOGIN
        nursery.cancel_scope.cancel()
        await client.close()
