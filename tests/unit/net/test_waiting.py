"""What a service says while the other side is not there."""

import pytest
import structlog
import trio
import trio.testing

from pipeline.errors import StorageError
from pipeline.net.waiting import Waiting


async def test_a_party_that_is_missing_is_named_at_once_and_again(autojump_clock: trio.testing.MockClock) -> None:
    waiting, faults, there = Waiting(), list[str](), trio.Event()

    async def wait() -> None:
        await waiting.wait_for("ZooKeeper at a:1", there.wait, lambda: faults[-1] if faults else None)

    with structlog.testing.capture_logs() as log:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            assert waiting.problem == "waiting for ZooKeeper at a:1: it has not answered yet"
            faults.append("connection refused")
            assert waiting.problem == "waiting for ZooKeeper at a:1: connection refused"
            await trio.sleep(70)
            there.set()
        assert waiting.problem is None
    assert [(each["event"], each["log_level"]) for each in log] == [("waiting", "warning")] * 3 + [("waited", "info")]
    assert (log[0]["party"], log[0]["reason"]) == ("ZooKeeper at a:1", "connection refused")


async def test_a_party_that_is_there_is_not_mentioned() -> None:
    waiting = Waiting()

    async def reach() -> int:
        return 7

    assert waiting.problem == "starting"

    with structlog.testing.capture_logs() as log:
        assert [await waiting.wait_for("a", reach) for _ in range(2)] == [7, 7]
    assert (log, waiting.problem) == ([], None)


async def test_what_waiting_cannot_mend_is_raised_at_once() -> None:
    waiting = Waiting()

    async def reach() -> None:
        raise StorageError("a", "refused")

    with pytest.raises(StorageError, match="refused"):
        await waiting.wait_for("a", reach)
    assert waiting.problem is None
