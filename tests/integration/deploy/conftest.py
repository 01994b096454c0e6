"""A bare Debian with the package installed, which the tests of a run share."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.debian import DebianRoot, debian_root, why_not
from tests.support.packages import debian_package


@pytest.fixture(scope="session")
def debian(tmp_path_factory: Any) -> Iterator[DebianRoot]:
    """A bare Debian with the package in /package.deb, not installed. Tests lay roots of their own above it."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with debian_root(tmp_path_factory.mktemp("bare") / "root") as root:
        shutil.copy(debian_package(), root.path / "package.deb")
        yield root


@pytest.fixture(scope="session")
def installed(debian: DebianRoot, tmp_path_factory: Any) -> Iterator[DebianRoot]:
    """A bare Debian on which the package is installed. Tests lay roots of their own above it."""
    with debian_root(tmp_path_factory.mktemp("installed") / "root", debian) as root:
        root.run("dpkg", "--force-unsafe-io", "--install", "/package.deb")
        yield root
