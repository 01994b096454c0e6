"""kill -9 of every part, again and again, under load: what was acknowledged is in the hub exactly once, and counted."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.cli.child_services import ServiceUnit
from pipeline.cli.demo.datacenters import HUB, LIVE, Datacenters
from tests.support.copies import check_copies
from tests.support.sizes import size
from tests.support.traffic import make_topic, traffic

TOPIC = "clicks"
FEW, MANY = (1, 1), (size(10, 20), size(5, 10))
"""Kills of each part by itself, and of all at once."""
LONGEST_LIFE_S = 0.6
SEED = 20110612


async def kill_and_restart(datacenters: Datacenters, unit: ServiceUnit) -> None:
    unit.kill()
    await unit.wait()
    await datacenters.start_unit(unit)


@pytest.mark.parametrize(
    ("kills_of_each", "kills_of_all"), [FEW, pytest.param(*MANY, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
async def test_kills_of_any_process_lose_and_double_no_record(
    tmp_path: Path, kills_of_each: Any, kills_of_all: Any
) -> None:
    random = Random(SEED)
    async with Datacenters(tmp_path, [TOPIC]) as datacenters:
        published = await make_topic(datacenters, TOPIC)
        mirror, hub, *live = datacenters.mirror, *(datacenters.brokers[name] for name in (HUB, *LIVE))
        victims: list[tuple[int, str, list[list[ServiceUnit]]]] = [
            (kills_of_each, "the mirror", [[mirror]]),
            (kills_of_each, "the hub's broker", [[hub]]),
            (kills_of_each, "a live broker", [[broker] for broker in live]),
            (kills_of_all, "all at once", [[mirror, hub, *live, datacenters.audit]]),
        ]
        for kills, name, groups in victims:
            async with traffic(datacenters.bootstrap, TOPIC, published, random):
                for _ in range(kills):
                    await trio.sleep(random.uniform(0, LONGEST_LIFE_S))
                    async with trio.open_nursery() as nursery:
                        for unit in random.choice(groups):
                            nursery.start_soon(kill_and_restart, datacenters, unit)
            acknowledged = await check_copies(datacenters, TOPIC, published)
            print(f"{name} killed {kills} times: {acknowledged} records so far, none lost or doubled, all counted")
