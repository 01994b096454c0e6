"""A broker in the process of the test, with the clock and the random numbers of a real one."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.replication.observer import NoObserver
from pipeline.broker.server import BrokerHandle, run_broker
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.cli.terminal.connect import wall_clock
from pipeline.coordination.interface import CoordinationClient


@asynccontextmanager
async def serving_broker(
    config: BrokerConfig, zookeeper: CoordinationClient, metrics: CollectorRegistry | None = None
) -> AsyncIterator[BrokerHandle]:
    """Run a broker until the block ends."""
    async with trio.open_nursery() as nursery:
        run = partial(
            run_broker,
            config,
            zookeeper,
            clock=wall_clock,
            rng=random.SystemRandom(),
            observer=NoObserver(),
            metrics=metrics or CollectorRegistry(),
        )
        handle: BrokerHandle = await nursery.start(run)
        yield handle
        nursery.cancel_scope.cancel()
