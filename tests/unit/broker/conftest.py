import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.server import BrokerHandle, run_broker
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.net.connection_pool import open_connection_pool
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import NOW_MS, Broker, Observed, Start


@pytest.fixture
def zookeeper_twin() -> MemoryZooKeeper:
    return MemoryZooKeeper()


@pytest.fixture
def start(tmp_path: Path, zookeeper_twin: MemoryZooKeeper) -> Start:
    """`async with start(broker_id, **settings) as broker`; dots of settings are written as underscores."""

    @asynccontextmanager
    async def start(
        broker_id: int = 1, *, files: Any = None, compile_schema: Any = None, **settings: Any
    ) -> AsyncIterator[Broker]:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        config = BrokerConfig.from_settings(
            {
                "broker.id": broker_id,
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(tmp_path / f"broker-{broker_id}"),
                "zookeeper.connect": "memory:0",
                "offsets.topic.replication.factor": 1,
                **given,
            }
        )
        metrics, observed = CollectorRegistry(), Observed()
        async with (
            zookeeper_twin.open() as client,
            open_connection_pool("test") as pool,
            trio.open_nursery() as nursery,
        ):

            async def run(task_status: trio.TaskStatus[BrokerHandle]) -> None:
                await run_broker(
                    config,
                    client,
                    clock=lambda: NOW_MS,
                    rng=random.Random(broker_id),
                    observer=observed,
                    metrics=metrics,
                    files=files,
                    compile_schema=compile_schema,
                    task_status=task_status,
                )

            handle: BrokerHandle = await nursery.start(run)
            yield Broker(handle, client, pool, metrics, observed)
            nursery.cancel_scope.cancel()

    return start
