"""Warnings about what every account of a host may read."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pipeline.broker.security.open_paths import is_open, warn_of_open_paths


@pytest.fixture
def reachable(tmp_path: Path) -> Path:
    """A directory that every account can reach."""
    above = tmp_path
    while above != above.parent:
        if not above.stat().st_mode & 1:
            if above.stat().st_uid != os.getuid():
                pytest.skip("the temporary directory is closed to others by somebody else")
            above.chmod(above.stat().st_mode | 1)
        above = above.parent
    return tmp_path


def test_what_others_may_read_is_named_with_the_remedy(reachable: Path) -> None:
    logs, key = reachable / "logs", reachable / "broker.pem"
    logs.mkdir(mode=0o755)
    key.write_text("secret")
    key.chmod(0o640)
    with capture_logs() as told:
        warn_of_open_paths([logs, key, reachable / "missing"])
    assert [event["remedy"] for event in told] == [f"chmod o-rwx {logs}"]


def test_a_closed_directory_above_protects_what_is_in_it(reachable: Path) -> None:
    key = reachable / "closed" / "broker.pem"
    key.parent.mkdir(mode=0o700)
    key.write_text("secret")
    key.chmod(0o644)
    assert not is_open(key)
    key.parent.chmod(0o711)
    assert is_open(key)
    link = reachable / "link.pem"
    link.symlink_to(key)
    assert is_open(link)
