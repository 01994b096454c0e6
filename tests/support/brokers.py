"""Brokers in this process, on loopback, with a ZooKeeper in memory: one for each cluster that a test needs."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.config import BrokerConfig
from pipeline.broker.observer import LogObserver, NoObserver
from pipeline.broker.server import BrokerHandle, run_broker
from pipeline.client.cluster import Cluster, open_cluster
from pipeline.client.config import ClientConfig
from pipeline.net.nurseries import unwrapped_errors
from pipeline.testing.memory_zookeeper import MemoryZooKeeper


def clock() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def serving_cluster(
    directory: Path, *, zookeeper: MemoryZooKeeper | None = None, observer: LogObserver | None = None, **settings: Any
) -> AsyncIterator[Cluster]:
    """One broker until the block ends; gives the cluster as clients see it. Dots of settings are underscores."""
    config = BrokerConfig.from_settings(
        {
            "broker.id": 1,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory),
            "zookeeper.connect": "memory:0",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    with unwrapped_errors():
        async with (zookeeper or MemoryZooKeeper()).open() as client, trio.open_nursery() as nursery:
            run = partial(
                run_broker,
                config,
                client,
                clock=clock,
                random=Random(1),
                observer=observer or NoObserver(),
                metrics=CollectorRegistry(),
            )
            handle: BrokerHandle = await nursery.start(run)
            client_config = ClientConfig(
                bootstrap=(handle.address,), retry_backoff_ms=10, retry_backoff_max_ms=100, default_api_timeout_ms=2000
            )
            async with open_cluster(client_config) as cluster:
                yield cluster
            nursery.cancel_scope.cancel()
