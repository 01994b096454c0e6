"""Counts of what a mirror copies, reported to the audit topic of the hub."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pipeline.cli.terminal.connect import randomness, wall_clock

if TYPE_CHECKING:
    from pipeline.audit.counting.mirror_counter import MirrorCounter
    from pipeline.client.cluster.cluster import Cluster
    from pipeline.mirror.config import MirrorConfig


@asynccontextmanager
async def counting_copies(config: "MirrorConfig", hub: "Cluster") -> "AsyncIterator[MirrorCounter]":
    """Give an observer of copies, and report its counts until the block ends, and once more then."""
    from pipeline.audit.counting.counted_life import new_life, reporting
    from pipeline.audit.counting.mirror_counter import MirrorCounter

    rng, host = randomness(), socket.gethostname()
    counter = MirrorCounter(
        instance=new_life(rng),
        host=host,
        window_ms=config.window_ms,
        interval_ms=config.interval_ms,
        clock=wall_clock,
    )
    async with reporting(counter, hub, interval_s=config.interval_ms / 1000, clock=wall_clock, rng=rng):
        yield counter
