"""Three brokers that are restarted one by one with other settings, and clients that go on meanwhile."""

import random
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import trio
from confluent_kafka import Consumer, KafkaError, Message, Producer
from prometheus_client import CollectorRegistry

from pipeline.broker.replication.observer import NoObserver
from pipeline.broker.server import BrokerHandle, run_broker
from pipeline.cli.broker import read_broker_settings
from pipeline.cli.child_services import ServiceUnit
from pipeline.cli.terminal.connect import wall_clock
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.net.nurseries import unwrapped_errors
from pipeline.testing.memory_zookeeper import MemoryZooKeeper

REFUSALS = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Errors outside of records that no restart explains."""

Settings = Mapping[str, Any]


class RestartableBrokers(Protocol):
    """Brokers by number, each with the settings of its last start."""

    async def start(self, number: int, settings: Settings) -> None:
        """Start a broker, and wait until it serves."""

    async def stop(self, number: int) -> None:
        """Stop a broker as SIGTERM does."""


@dataclass(slots=True)
class BrokersHere:
    """Brokers in this process, with a ZooKeeper in memory."""

    directory: Path
    nursery: trio.Nursery
    zookeeper: MemoryZooKeeper = field(default_factory=MemoryZooKeeper)
    _scopes: dict[int, trio.CancelScope] = field(default_factory=dict)
    _ended: dict[int, trio.Event] = field(default_factory=dict)

    async def start(self, number: int, settings: Settings) -> None:
        """Start a broker, and wait until it serves."""
        given = {"broker.id": number, "log.dirs": str(self.directory / f"logs-{number}"), "zookeeper.connect": "m:0"}
        config, _ = read_broker_settings({**given, **settings})
        ended, scope = trio.Event(), trio.CancelScope()

        async def run(task_status: trio.TaskStatus[BrokerHandle]) -> None:
            with scope:
                async with self.zookeeper.open() as client:
                    await run_broker(
                        config,
                        client,
                        clock=wall_clock,
                        rng=random.SystemRandom(),
                        observer=NoObserver(),
                        metrics=CollectorRegistry(),
                        task_status=task_status,
                    )
            ended.set()

        self._scopes[number], self._ended[number] = scope, ended
        await self.nursery.start(run)

    async def stop(self, number: int) -> None:
        """Stop a broker as SIGTERM does."""
        self._scopes[number].cancel()
        await self._ended[number].wait()


@dataclass(slots=True)
class BrokerProcesses:
    """Brokers as processes, with a real ZooKeeper."""

    directory: Path
    zookeeper: str
    _units: dict[int, ServiceUnit] = field(default_factory=dict)

    async def start(self, number: int, settings: Settings) -> None:
        """Start a broker, and wait until it serves."""
        directory = self.directory / f"broker-{number}"
        given = {"broker.id": number, "log.dirs": str(directory / "logs"), "zookeeper.connect": self.zookeeper}
        self._units[number] = ServiceUnit(directory.name, "broker", directory, {**given, **settings})
        await self._units[number].start()

    async def stop(self, number: int) -> None:
        """Stop a broker as SIGTERM does."""
        await self._units[number].stop()


@asynccontextmanager
async def restartable_brokers(directory: Path, *, as_processes: bool) -> AsyncIterator[RestartableBrokers]:
    """Brokers until the block ends."""
    async with AsyncExitStack() as stack:
        if not as_processes:
            stack.enter_context(unwrapped_errors())
            nursery = await stack.enter_async_context(trio.open_nursery())
            yield BrokersHere(directory, nursery)
            nursery.cancel_scope.cancel()
            return
        zookeeper = ZooKeeperProcess(directory / "zookeeper")
        await zookeeper.start()
        brokers = BrokerProcesses(directory, zookeeper.connect)
        try:
            yield brokers
        finally:
            with trio.CancelScope(shield=True):
                for unit in brokers._units.values():
                    await unit.stop()
                await zookeeper.stop()


class Traffic:
    """A producer and a consumer of librdkafka in threads. `errors`: what they met that is no mere restart."""

    def __init__(self, settings: Mapping[str, str], topic: str, group: str) -> None:
        self._settings = {**settings, "error_cb": self._note, "log_level": 0}
        self._topic = topic
        self._group = group
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._write, self._read)]
        self.errors: list[str] = []
        self.acknowledged: set[int] = set()
        self.read: set[int] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run until the block ends, and read all that was acknowledged."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            await self.finish()

    async def finish(self) -> None:
        """Write no more, and read all that was acknowledged."""
        self._stop.set()
        with trio.CancelScope(shield=True):
            for thread in self._threads:
                await trio.to_thread.run_sync(thread.join)

    def _note(self, error: KafkaError) -> None:
        if error.code() in REFUSALS:
            self.errors.append(str(error))

    def _write(self) -> None:
        producer = Producer({**self._settings, "linger.ms": 5, "acks": "all", "enable.idempotence": True})
        number = 0

        def delivered(sent: int, error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self.acknowledged.add(sent)
            else:
                self.errors.append(f"record {sent}: {error}")

        while not self._stop.is_set():
            producer.produce(self._topic, f"{self._group} {number}", on_delivery=partial(delivered, number))
            number += 1
            producer.poll(0.005)
        if left := producer.flush(60):
            self.errors.append(f"{left} records are left")

    def _read(self) -> None:
        consumer = Consumer({**self._settings, "group.id": self._group, "auto.offset.reset": "earliest"})
        consumer.subscribe([self._topic])
        writer = self._threads[0]
        quiet = 0
        while not self._stop.is_set() or writer.is_alive() or not (self.acknowledged <= self.read or quiet > 600):
            messages = consumer.consume(1000, timeout=0.1)
            quiet = 0 if messages or writer.is_alive() else quiet + 1
            for message in messages:
                if message.error():
                    self.errors.append(f"consumer: {message.error()}")
                    continue
                whose, number = (message.value() or b"").decode().split()
                if whose == self._group:
                    self.read.add(int(number))
        consumer.close()
