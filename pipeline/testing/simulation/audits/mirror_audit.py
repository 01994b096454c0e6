"""The counter of a simulated mirror, as `pipeline mirror start` has it."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pipeline.audit.counting.counted_life import new_life, reporting
from pipeline.audit.counting.mirror_counter import MirrorCounter
from pipeline.client.cluster.cluster import Cluster
from pipeline.testing.simulation.audits.broker_audit import INTERVAL_S, WINDOW_MS
from pipeline.testing.simulation.mirrors.mirror_process import SimulatedMirror


@asynccontextmanager
async def counting_copies_of(rng: random.Random, mirror: SimulatedMirror, hub: Cluster) -> AsyncIterator[MirrorCounter]:
    """Give an observer of the copies of one life, and report its counts until the block ends."""
    counter = MirrorCounter(
        instance=new_life(rng),
        host=mirror.name,
        window_ms=WINDOW_MS,
        interval_ms=round(INTERVAL_S * 1000),
        clock=mirror.clock,
    )
    async with reporting(counter, hub, interval_s=INTERVAL_S, clock=mirror.clock, rng=rng):
        yield counter
