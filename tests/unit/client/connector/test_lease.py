"""The lease of a session, on a clock that jumps."""

import math

import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from pipeline.client.connector.lease import SessionLease
from pipeline.testing.memory_zookeeper import MemoryZooKeeper

PATH = "/consumers/g/ids/a"
TIMEOUT_S = 6


async def test_a_lease_ends_before_the_session_can(autojump_clock: MockClock) -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.open(session_timeout_ms=TIMEOUT_S * 1000) as client, trio.open_nursery() as nursery:
        lease = SessionLease(client, PATH)
        nursery.start_soon(lease.run)
        await trio.sleep(TIMEOUT_S)
        assert not lease.holds()
        await client.create(PATH, ephemeral=True)
        lease.start(client.session_id)
        confirmed_at = [-math.inf]
        zookeeper.before_request = lambda _client, _path: confirmed_at.append(trio.current_time())
        for _ in range(100):
            await trio.sleep(0.1)
            assert lease.holds()
        zookeeper.stop()
        while lease.holds():
            await trio.sleep(0.01)
        assert 0.74 * TIMEOUT_S < trio.current_time() - confirmed_at[-1] < 0.76 * TIMEOUT_S
        # The request that waits now was made long ago: its answer says nothing of the present.
        await trio.sleep(TIMEOUT_S)
        zookeeper.before_request = lambda _client, _path: zookeeper.stop()
        with capture_logs() as logs:
            zookeeper.start()
            await trio.sleep(0.01)
        assert not lease.holds()
        assert [entry["event"] for entry in logs] == ["connector_confirmed_too_late"]
        assert logs[0]["waited_s"] > 0.75 * TIMEOUT_S
        zookeeper.before_request = None
        zookeeper.start()
        await trio.sleep(0.01)
        assert lease.holds()
        lease.end()
        assert not lease.holds()
        nursery.cancel_scope.cancel()


async def test_another_session_or_a_missing_registration_confirms_nothing(autojump_clock: MockClock) -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.open(session_timeout_ms=TIMEOUT_S * 1000) as client, trio.open_nursery() as nursery:
        lease = SessionLease(client, PATH)
        nursery.start_soon(lease.run)
        former = client.session_id
        lease.start(former)
        await trio.sleep(TIMEOUT_S)
        assert not lease.holds()
        zookeeper.expire(client)
        await client.create(PATH, ephemeral=True)
        lease.start(former)
        await trio.sleep(TIMEOUT_S)
        assert not lease.holds()
        lease.start(client.session_id)
        await trio.sleep(0.01)
        assert lease.holds()
        nursery.cancel_scope.cancel()
