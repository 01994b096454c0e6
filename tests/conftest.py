"""What every test can ask for."""

import gc
import itertools
import os
import signal
from collections.abc import Iterator

import pytest
import structlog
import trio.testing
from hypothesis import HealthCheck, settings

from pipeline.coordination.embedded import ZooKeeperProcess

settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("repeatable", settings.get_profile("random"), derandomize=True, database=None)
settings.register_profile("short", settings.get_profile("repeatable"), max_examples=25)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it

gc.disable()  # while thousands of tests are collected: see pytest_collection_finish

_chroot_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the examples of properties: neither luck nor the speed of the machine decides, and `make test` has few."""
    settings.load_profile("short" if config.option.markexpr == "not long" else "repeatable")


def pytest_collection_finish() -> None:
    """Exempt what was collected from the searches for garbage, which would go through all of it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def no_logging_of_another_test() -> Iterator[None]:
    """A command that a test runs in this process configures structlog, by a level of its own."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def jumping_clock() -> trio.testing.MockClock:
    """A clock as `autojump_clock`, for tests with sockets: time passes once nothing has arrived for a moment."""
    return trio.testing.MockClock(autojump_threshold=0.01)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """One real server for all tests, which none may stop."""
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeeperProcess) -> str:
    """A connect string with a chroot that no other test uses."""
    return f"{zookeeper_server.connect}/test-{os.getpid()}-{next(_chroot_numbers)}"
