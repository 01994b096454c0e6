"""One group on simulated time."""

import pytest

from tests.support.groups import Driver


@pytest.fixture
def driver() -> Driver:
    return Driver()
