"""Brokers in this process, on loopback, with a ZooKeeper in memory: one for each cluster that a test needs."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.replication.observer import LogObserver, NoObserver
from pipeline.broker.replication.partition import Partition
from pipeline.broker.server import BrokerHandle, run_broker
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.model import BrokerId, HostPort, TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.messages.metadata import MetadataRequest
from pipeline.testing.memory_zookeeper import MemoryZooKeeper

POLL_S = 0.005


def clock() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def serving_cluster(
    directory: Path, *, zookeeper: MemoryZooKeeper | None = None, observer: LogObserver | None = None, **settings: Any
) -> AsyncIterator[Cluster]:
    """One broker until the block ends; gives the cluster as clients see it. Dots of settings are underscores."""
    config = _config(str(directory), 1, settings)
    with unwrapped_errors():
        async with (zookeeper or MemoryZooKeeper()).open() as client, trio.open_nursery() as nursery:
            run = partial(
                run_broker,
                config,
                client,
                clock=clock,
                rng=Random(directory.name),  # of each cluster another id
                observer=observer or NoObserver(),
                metrics=CollectorRegistry(),
            )
            handle: BrokerHandle = await nursery.start(run)
            client_config = ClientConfig(
                bootstrap=(handle.address,),
                retry_backoff_ms=10,
                retry_backoff_max_ms=100,
                default_api_timeout_ms=30_000,
            )
            async with open_cluster(client_config) as cluster:
                yield cluster
            nursery.cancel_scope.cancel()


@dataclass(eq=False)
class Brokers:
    """Brokers in this process that make a cluster, and the cluster as clients see it."""

    directory: Path
    zookeeper: Any
    settings: dict[str, Any]
    nursery: trio.Nursery
    observe: Callable[[int], LogObserver]
    handles: dict[int, BrokerHandle] = field(default_factory=dict)
    _scopes: dict[int, trio.CancelScope] = field(default_factory=dict)
    _ended: dict[int, trio.Event] = field(default_factory=dict)
    _cluster: Cluster | None = None
    _lives: int = 0
    """Each draws other random numbers: an emptied log dir gets another id."""

    @property
    def cluster(self) -> Cluster:
        """What clients talk to."""
        assert self._cluster is not None
        return self._cluster

    async def addresses(self) -> list[HostPort]:
        """Of those that run; one that is started again has another one."""
        return [handle.address for handle in self.handles.values()]

    async def start(self, *ids: int) -> None:
        """Start these, all at once."""
        async with trio.open_nursery() as starting:
            for broker in ids:
                starting.start_soon(self.nursery.start, self._run, broker)

    async def stop(self, *ids: int) -> None:
        """Stop these as a signal would."""
        for broker in ids:
            self._scopes[broker].cancel()
        for broker in ids:
            await self._ended[broker].wait()

    def kill(self, broker: int) -> None:
        """End this one, which may be just starting, without waiting for that."""
        self._scopes[broker].cancel()

    async def _run(self, broker: int, *, task_status: trio.TaskStatus[None]) -> None:
        self._lives += 1
        random = Random(f"{self.directory.name} {self._lives}")  # of each cluster another id
        first = self.directory / str(broker)
        config = _config(f"{first},{first}-second", broker, self.settings)
        self._scopes[broker], self._ended[broker] = trio.CancelScope(), trio.Event()

        async def run(*, task_status: trio.TaskStatus[BrokerHandle]) -> None:
            async with self.zookeeper.open() as client:
                await run_broker(
                    config,
                    client,
                    clock=clock,
                    rng=random,
                    observer=self.observe(broker),
                    metrics=CollectorRegistry(),
                    task_status=task_status,
                )

        try:
            with self._scopes[broker], unwrapped_errors():
                async with trio.open_nursery() as nursery:
                    self.handles[broker] = await nursery.start(run)
                    task_status.started()
        finally:
            self.handles.pop(broker, None)
            self._ended[broker].set()

    def replica(self, broker: int, topic: str, index: int = 0) -> Partition:
        """A partition as this broker has it. Raises KeyError."""
        return self.handles[broker].replicas.partitions[TopicPartition(topic, index)]

    def replicas(self, topic: str, index: int = 0) -> Sequence[Partition]:
        """A partition on all brokers that have it."""
        name = TopicPartition(topic, index)
        found = (handle.replicas.partitions.get(name) for _, handle in sorted(self.handles.items()))
        return [replica for replica in found if replica is not None]

    def leader(self, topic: str, index: int = 0) -> BrokerId | None:
        """Who thinks to lead it."""
        return next((replica.own_id for replica in self.replicas(topic, index) if replica.is_leader), None)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float = 180) -> None:
        """Wait for a state of the brokers. Raises TooSlowError."""
        with trio.fail_after(timeout_s):
            while not condition():
                await trio.sleep(POLL_S)

    async def wait_for_isr(self, topic: str, size: int, index: int = 0) -> None:
        """Wait until a leader thinks that so many are in sync."""
        await self.wait_until(lambda: any(r.is_leader and len(r.isr) == size for r in self.replicas(topic, index)))


@asynccontextmanager
async def replicated_cluster(
    directory: Path,
    brokers: int = 3,
    *,
    observe: Callable[[int], LogObserver] = lambda _broker: NoObserver(),
    zookeeper: Any = None,
    **settings: Any,
) -> AsyncIterator[Brokers]:
    """Brokers 1, 2, ... until the block ends, each life with its observer. Dots of settings are underscores.

    `zookeeper.open()` gives a client; None: a ZooKeeper in memory.
    """
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            running = Brokers(directory, zookeeper or MemoryZooKeeper(), settings, nursery, observe)
            await running.start(*range(1, brokers + 1))
            client_config = ClientConfig(retry_backoff_ms=10, retry_backoff_max_ms=100, default_api_timeout_ms=60_000)
            async with open_cluster(client_config, discover=running.addresses) as cluster:
                running._cluster = cluster
                await _until_the_controller_knows(cluster, brokers)
                yield running
            nursery.cancel_scope.cancel()


async def _until_the_controller_knows(cluster: Cluster, count: int) -> None:
    """Of a broker that serves clients the others hear a moment later; before that they place no replicas on it."""
    with trio.fail_after(180):
        while len((await cluster.request_controller(MetadataRequest(topics=[]), timeout_s=60)).brokers) < count:
            await trio.sleep(POLL_S)


def _config(log_dirs: str, broker: int, settings: dict[str, Any]) -> BrokerConfig:
    return BrokerConfig.from_settings(
        {
            "broker.id": broker,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": log_dirs,
            "zookeeper.connect": "memory:0",
            "offsets.topic.replication.factor": 1,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
