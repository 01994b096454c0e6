"""A broker that has nothing but a controller, its watchers and its registration; topics for it to decide about."""

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import trio
import trio.testing

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.cluster.watcher import ClusterWatcher
from pipeline.broker.controller.controller import Controller
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.partition_states import read_states
from pipeline.coordination.znodes import (
    BrokerRegistration,
    Listener,
    PartitionState,
    TopicAssignment,
    encode_config,
    topic_config_path,
)
from pipeline.model import BrokerEndpoint, BrokerId, HostPort, TopicPartition

DEADLINE_S = 60


class Opened(Protocol):
    """A ZooKeeper, real or in memory."""

    def open(self) -> AbstractAsyncContextManager[Any]: ...


class Counted:
    """A client that counts its requests."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.requests: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in {"transaction", "get_each", "get_or_none", "children", "set", "create", "exists"}:
            self.requests.append(name)
        return getattr(self.client, name)


@dataclass
class Rig:
    """One broker's controller, and what it knows."""

    client: Counted
    view: ClusterView
    controller: Controller
    nursery: trio.Nursery

    async def until(self, condition: Callable[[ClusterView], bool]) -> None:
        with trio.fail_after(DEADLINE_S):
            await self.view.wait_until(condition)


@asynccontextmanager
async def running(zookeeper: Opened, broker_id: int) -> AsyncIterator[Rig]:
    """A registered broker that has nothing but a controller."""
    own = BrokerEndpoint(id=BrokerId(broker_id), address=HostPort("127.0.0.1", 9092))
    settings = DynamicSettings(
        BrokerConfig.from_settings(
            {
                "broker.id": broker_id,
                "log.dirs": "/none",
                "zookeeper.connect": "memory:0",
                "listeners": "PLAINTEXT://127.0.0.1:0",
            }
        )
    )
    async with zookeeper.open() as client, trio.open_nursery() as nursery:
        counted, view = Counted(client), ClusterView("cluster")
        await register(client, broker_id)
        watcher = ClusterWatcher(counted, settings, view, own)
        controller = Controller(counted, settings, view, watcher.states, own.id, lambda: broker_id)
        await nursery.start(watcher.run)
        await nursery.start(controller.run)
        yield Rig(counted, view, controller, nursery)
        nursery.cancel_scope.cancel()


async def register(client: CoordinationClient, broker_id: int) -> None:
    registration = BrokerRegistration(
        id=BrokerId(broker_id), listeners=(Listener(address=HostPort("127.0.0.1", 9092)),), timestamp_ms=0
    )
    await client.create(registration.path, registration.encode(), ephemeral=True)


async def make_topic(client: CoordinationClient, name: str, replicas: Sequence[Sequence[int]]) -> None:
    partitions = {index: tuple(map(BrokerId, brokers)) for index, brokers in enumerate(replicas)}
    assignment = TopicAssignment(topic=name, topic_id=uuid.uuid5(uuid.NAMESPACE_URL, name), partitions=partitions)
    await client.create(assignment.path, assignment.encode())


def is_led(name: str, count: int) -> Callable[[ClusterView], bool]:
    def condition(view: ClusterView) -> bool:
        topic = view.topic(name)
        return topic is not None and len(topic.partitions) == count and topic.is_led

    return condition


async def state_of(client: CoordinationClient, name: str, index: int = 0) -> PartitionState:
    return (await read_states(client, [TopicPartition(name, index)]))[TopicPartition(name, index)].state


async def make_unclean(client: CoordinationClient, name: str) -> None:
    await client.create(topic_config_path(name), encode_config({"unclean.leader.election.enable": "true"}))
