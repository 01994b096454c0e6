"""A mirror that was shut down for good: its selection is removed, and the audit expects nothing of it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.cli.mirror.retire import retired
from pipeline.errors import ConfigurationError
from pipeline.mirror.journals.selections import PORTION_LENGTH
from tests.support.brokers import serving_cluster
from tests.support.mirrors import Site, make
from tests.unit.cli.audit.test_expectations_reader import copies, reader_of, record, select


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with (
        serving_cluster(tmp_path / "east") as east,
        serving_cluster(tmp_path / "west") as west,
        serving_cluster(tmp_path / "hub") as hub,
    ):
        yield Site(east, west, hub)


async def test_a_retired_mirror_is_expected_to_copy_nothing(site: Site) -> None:
    await make(site.east)
    await make(site.west, "views")
    await record(site, "old", select("clicks", "x" * PORTION_LENGTH))  # two portions
    await record(site, "new", select("views", source="west"))
    both = [("east", "clicks", "clicks"), ("west", "views", "views")]
    assert copies(await reader_of(site).read()) == both

    shown = await retired(site.hub, "old", dry_run=True)
    assert copies(await reader_of(site).read()) == both
    done = await retired(site.hub, "old", dry_run=False)
    assert done == shown | {"dry_run": False}
    assert [flow["topics"][0] for flow in done["flows"]] == ["clicks"]
    assert done["left_without_mirror"] == ["east"]
    assert copies(await reader_of(site).read()) == both[1:]

    await record(site, "old", select("clicks"))
    assert copies(await reader_of(site).read()) == both


async def test_a_name_that_the_hub_does_not_know_is_refused_with_those_that_it_knows(site: Site) -> None:
    with pytest.raises(ConfigurationError, match="these mirrors: none"):
        await retired(site.hub, "old", dry_run=False)
    await record(site, "new", select("views", source="west"))
    with pytest.raises(ConfigurationError, match="no selection of old; it has these mirrors: new"):
        await retired(site.hub, "old", dry_run=False)
