import resource
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from pipeline.net import open_files
from pipeline.net.open_files import RESERVED_FILES, is_half_free, raise_open_files_limit


@pytest.fixture(autouse=True)
def default_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands configure logging for their process, and a logger that was used before keeps what held then."""
    configured = structlog.get_config()
    structlog.reset_defaults()
    monkeypatch.setattr(open_files, "logger", structlog.get_logger())
    yield
    structlog.configure(**configured)


@pytest.fixture
def hard_limit() -> Iterator[int]:
    """With the soft limit below it; both are restored."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("open files are not limited here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_becomes_the_hard_one(hard_limit: int) -> None:
    with capture_logs() as logs:
        raise_open_files_limit(hard_limit - RESERVED_FILES)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard_limit, hard_limit)
    assert logs == []


def test_connections_that_do_not_fit_are_told(hard_limit: int) -> None:
    with capture_logs() as logs:
        raise_open_files_limit(hard_limit)
    assert [(entry["event"], entry["limit"], entry["needed"]) for entry in logs] == [
        ("open_files_limited", hard_limit, hard_limit + RESERVED_FILES)
    ]


def test_half_of_the_descriptors_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    used = len(list(open_files._DESCRIPTORS.iterdir()))
    for limit, is_free in ((2 * used + 20, True), (used, False), (resource.RLIM_INFINITY, True)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert is_half_free() is is_free
