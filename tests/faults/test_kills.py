"""kill -9 of every part, again and again, under load: what was acknowledged is in the hub exactly once, and counted."""

from random import Random

import pytest
import trio

from pipeline.cli.datacenters import HUB, LIVE, Datacenters
from pipeline.cli.services import ServiceUnit
from tests.support.copies import check_copies
from tests.support.traffic import FAST_SESSIONS, make_topic, traffic

TOPIC = "clicks"
KILLS = 10
LONGEST_LIFE_S = 0.6
SEED = 20110612


async def kill_and_restart(datacenters: Datacenters, unit: ServiceUnit) -> None:
    unit.kill()
    await unit.wait()
    await datacenters.start_unit(unit)


@pytest.mark.timeout(240)
async def test_whoever_is_killed_nothing_is_lost_or_doubled(tmp_path):
    random = Random(SEED)
    async with Datacenters(tmp_path, [TOPIC], FAST_SESSIONS) as datacenters:
        published = await make_topic(datacenters, TOPIC)
        victims = {
            "the mirror": [datacenters.mirror],
            "the hub's broker": [datacenters.brokers[HUB]],
            "a live broker": [datacenters.brokers[name] for name in LIVE],
        }
        for name, units in victims.items():
            async with traffic(datacenters.bootstrap, TOPIC, published, random):
                for _ in range(KILLS):
                    await trio.sleep(random.uniform(0, LONGEST_LIFE_S))
                    await kill_and_restart(datacenters, random.choice(units))
            acknowledged = await check_copies(datacenters, TOPIC, published)
            print(f"{name}: {KILLS} kills so far, {acknowledged} records, none lost or doubled, all counted")
