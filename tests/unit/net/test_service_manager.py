"""What the service manager hears: real datagrams to a socket of the test."""

import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from pipeline.cli.foreground import run_until_signalled
from pipeline.model import HostPort
from pipeline.net.http.security import HttpSecurity
from pipeline.net.http.server import operations_routes
from pipeline.net.http.service import HttpService, serve_service
from pipeline.net.service_manager import ServiceManager

PID = 4711


class Manager:
    """A service manager: the socket at which it listens, and its name in NOTIFY_SOCKET."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def heard(self) -> list[str]:
        """Return the messages since the last call."""
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return messages


@pytest.fixture(params=["path", "abstract"])
def manager(request: Any, tmp_path: Path) -> Iterator[Manager]:
    name = str(tmp_path / "notify")
    made = Manager(name, name) if request.param == "path" else Manager(f"@{name}", f"\0{name}")
    with made.socket:
        yield made


def service(manager: Manager, **environment: str) -> ServiceManager:
    return ServiceManager.of_environment({"NOTIFY_SOCKET": manager.name, **environment}, PID)


async def test_a_service_is_ready_once_it_says_so_and_tells_the_reason_until_then(
    manager: Manager, autojump_clock: Any
) -> None:
    reasons = ["starting: the logs\nare opened", "starting: the logs\nare opened", "no ZooKeeper", None]
    await service(manager).announce(lambda: reasons.pop(0))
    assert manager.heard() == ["STATUS=starting: the logs are opened", "STATUS=no ZooKeeper", "READY=1\nSTATUS=ready"]


async def test_signs_of_life_come_three_times_within_the_time_of_the_watchdog(
    manager: Manager, autojump_clock: Any
) -> None:
    watched = service(manager, WATCHDOG_USEC="30000000", WATCHDOG_PID=str(PID))
    with trio.move_on_after(25):
        await watched.keep_alive()
    assert manager.heard() == ["WATCHDOG=1\nEXTEND_TIMEOUT_USEC=30000000"] * 3


async def test_a_stop_is_told_and_not_extended(manager: Manager, autojump_clock: Any) -> None:
    watched = service(manager, WATCHDOG_USEC="30000000")
    watched.note_stop()
    with trio.move_on_after(1):
        await watched.keep_alive()
    assert manager.heard() == ["STOPPING=1\nSTATUS=stopping", "WATCHDOG=1"]


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "x"}],
)
def test_without_a_watchdog_of_its_own_a_process_still_extends_its_start(manager: Manager, environment: Any) -> None:
    assert service(manager, **environment).interval_s == 10


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:1:2"}])
async def test_nobody_is_told_where_nobody_listens(environment: Any) -> None:
    nobody = ServiceManager.of_environment(environment, PID)
    nobody.note_stop()
    with trio.fail_after(5):
        await nobody.keep_alive()
        await nobody.announce(lambda: "never ready")


async def test_a_manager_that_is_gone_or_takes_nothing_fails_no_service(manager: Manager, tmp_path: Path) -> None:
    ServiceManager.of_environment({"NOTIFY_SOCKET": str(tmp_path / "gone")}, os.getpid()).tell("READY=1")
    full = service(manager)
    await trio.to_thread.run_sync(partial(_fill, full))
    assert 0 < len(manager.heard()) < 10_000


async def test_a_service_is_ready_at_last_though_the_manager_takes_nothing_for_a_while(
    manager: Manager, autojump_clock: Any
) -> None:
    full = service(manager)
    await trio.to_thread.run_sync(partial(_fill, full))

    async def take_all_later() -> None:
        await trio.sleep(5)
        manager.heard()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_all_later)
            await full.announce(lambda: None)
    assert manager.heard() == ["READY=1\nSTATUS=ready"]


async def test_a_reason_with_bytes_of_no_text_fails_no_service(manager: Manager, autojump_clock: Any) -> None:
    reasons = ["cannot read /data/\udcff", None]
    await service(manager).announce(lambda: reasons.pop(0))
    assert manager.heard() == ["STATUS=cannot read /data/?", "READY=1\nSTATUS=ready"]


def _fill(full: ServiceManager) -> None:
    for _ in range(10_000):
        full.tell("STATUS=" + "x" * 100)


async def test_a_service_in_the_foreground_gives_signs_of_life_and_tells_of_the_signal_that_ends_it(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.name)

    async def serve() -> None:
        await trio.testing.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep_forever()

    with trio.fail_after(10):
        assert await run_until_signalled(serve) == "SIGTERM"
    assert manager.heard() == ["WATCHDOG=1\nEXTEND_TIMEOUT_USEC=30000000", "STOPPING=1\nSTATUS=stopping"]


async def test_an_http_server_tells_that_its_service_is_ready_when_readyz_would(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.name)
    reason: list[str | None] = ["starting"]
    metrics = CollectorRegistry()
    routes = operations_routes(metrics, lambda: None, lambda: reason[0])
    service = HttpService(name="test", routes=routes, roles={}, metrics=metrics)
    heard: list[str] = []
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_service, service, HostPort("127.0.0.1", 0), HttpSecurity.from_settings({}))
            while not heard:
                heard += manager.heard()
                await trio.sleep(0.01)
            reason[0] = None
            while len(heard) < 2:
                heard += manager.heard()
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert heard == ["STATUS=starting", "READY=1\nSTATUS=ready"]
