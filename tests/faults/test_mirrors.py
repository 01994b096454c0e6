"""Mirrors that die while the hub is away, and two that work on the same table at once: nothing twice, nothing lost."""

from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.cli.child_services import ServiceUnit
from pipeline.cli.demo.datacenters import HUB, Datacenters
from tests.support.copies import check_copies
from tests.support.traffic import make_topic, traffic

TOPIC = "clicks"
ROUNDS = 5
LONGEST_LIFE_S = 1.0
SEED = 20110613


@pytest.mark.long
async def test_two_mirrors_at_once_die_with_the_hub_and_double_nothing(tmp_path: Path) -> None:
    random = Random(SEED)
    async with Datacenters(tmp_path, [TOPIC]) as datacenters:
        hub, first = datacenters.brokers[HUB], datacenters.mirror
        second = ServiceUnit("mirror-2", first.noun, tmp_path / "mirror-2", first.settings)
        published = await make_topic(datacenters, TOPIC)
        try:
            await datacenters.start_unit(second)
            async with traffic(datacenters.bootstrap, TOPIC, published, random):
                for number in range(ROUNDS):
                    await trio.sleep(random.uniform(0, LONGEST_LIFE_S))
                    victim = (first, second)[number % 2]
                    for unit in (hub, victim):
                        unit.kill()
                        await unit.wait()
                    async with trio.open_nursery() as nursery:  # a mirror is not ready before its hub is there
                        for unit in (victim, hub):
                            nursery.start_soon(datacenters.start_unit, unit)
            acknowledged = await check_copies(datacenters, TOPIC, published)
        finally:
            await second.stop()
    print(f"two mirrors, {ROUNDS} deaths with the hub: {acknowledged} records, none lost or doubled, all counted")
