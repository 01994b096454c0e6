"""The simulated mirror process: one life at a time, whoever starts it."""

import random

import trio

from pipeline.mirror.config import MirrorConfig
from pipeline.model import HostPort
from pipeline.testing.simulation.mirrors.mirror_process import SimulatedMirror
from pipeline.testing.simulation.network import SimulatedNetwork
from pipeline.testing.simulation.process import Process, run_simulated
from pipeline.testing.simulation.schedule import current_schedule
from pipeline.testing.simulation.trace import Trace

CONFIG = MirrorConfig.from_settings(
    {
        "destination.bootstrap.servers": "hub-1:9092",
        "sources": [{"name": "east", "bootstrap.servers": "east-1:9092"}],
        "topics": ["orders"],
        "http.listen": "127.0.0.1:0",
    }
)
UNWINDS_S = 5.0


class SlowlyEndingMirror(SimulatedMirror):
    """A mirror whose lives do nothing, and take a while to unwind."""

    alive = most_alive = begun = 0

    async def _live(self, process: Process) -> None:
        self.begun += 1
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(UNWINDS_S)
            self.alive -= 1


def test_two_starts_while_a_life_unwinds_are_one_life() -> None:
    """Otherwise a member of a group ran twice, and its partitions had owners that nobody waited for (seed 382)."""
    trace = Trace()
    lives = []

    async def main() -> None:
        network = SimulatedNetwork(current_schedule(), random.Random(1), slow=0.0)
        mirror = SlowlyEndingMirror(
            "mirror-1", CONFIG, [HostPort("hub-1", 9092)], network=network, trace=trace, seed="1"
        )
        async with trio.open_nursery() as nursery:
            for starts in (1, 2, 1):
                mirror.kill()
                for _ in range(starts):
                    nursery.start_soon(mirror.run_until_stopped)
                await trio.sleep(2 * UNWINDS_S)
                lives.append((mirror.begun, mirror.alive))
            mirror.kill()
        assert mirror.most_alive == 1

    run_simulated(main, 1, trace)
    assert trace.faults_of_code == []
    assert lives == [(1, 1), (2, 1), (3, 1)]
