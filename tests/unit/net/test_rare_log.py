"""What strangers do is logged rarely."""

import structlog
import trio
import trio.testing

from pipeline.diagnostics import get_logger
from pipeline.net.rare_log import INTERVAL_S, MAX_LINES, RareLog


async def test_a_host_has_one_line_a_minute_which_counts_the_others(autojump_clock: trio.testing.MockClock) -> None:
    rare = RareLog(get_logger("test"))
    with structlog.testing.capture_logs() as log:
        for number in range(100):
            rare.warning("broken", "a", peer=f"a:{number}")
        rare.warning("broken", "b", peer="b:1")
        rare.warning("refused", "a", peer="a:1")
        await trio.sleep(INTERVAL_S)
        rare.warning("broken", "a", peer="a:200")
    told = [(each["event"], each["peer"], each.get("left_out")) for each in log]
    assert told == [("broken", "a:0", None), ("broken", "b:1", None), ("refused", "a:1", None), ("broken", "a:200", 99)]


async def test_many_hosts_share_a_line(autojump_clock: trio.testing.MockClock) -> None:
    rare = RareLog(get_logger("test"))
    with structlog.testing.capture_logs() as log:
        for number in range(10 * MAX_LINES):
            rare.warning("broken", str(number))
        assert len(log) == MAX_LINES + 1
        await trio.sleep(INTERVAL_S)
        for number in range(10 * MAX_LINES):
            rare.warning("broken", f"later {number}")
        assert len(log) == 2 * (MAX_LINES + 1)


async def test_a_host_has_a_line_for_each_error(autojump_clock: trio.testing.MockClock) -> None:
    """Who mends a client learns what is wrong now."""
    rare = RareLog(get_logger("test"))
    with structlog.testing.capture_logs() as log:
        for error in ("no certificate", "expired", "expired", "no certificate"):
            rare.warning("refused", "a", error=error)
    assert [each["error"] for each in log] == ["no certificate", "expired"]
