"""The live clusters and the hub."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.brokers import serving_cluster
from tests.support.mirrors import Site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with (
        serving_cluster(tmp_path / "east") as east,
        serving_cluster(tmp_path / "west") as west,
        serving_cluster(tmp_path / "hub") as hub,
    ):
        yield Site(east, west, hub)
