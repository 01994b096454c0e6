"""Watches on what is registered in ZooKeeper, which keep a cluster's view up to date.

Events, the four of Kafka 0.7: a broker has registered, a broker is gone, a topic was created or deleted, and a topic
has other partitions or replicas than before.

Invariants:
- ZooKeeper says that something changed, and brokers say what: a view is always the answer of one broker. Brokers hear
  of a change a moment later, so they are asked until they report it, at most for `CATCH_UP_S` after the last change.
- What changed between the newest view and the first look at ZooKeeper is noticed too.
- Without ZooKeeper the cluster works as with a bootstrap list: errors and the age of the metadata cause refreshes.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Protocol

import trio

from pipeline.client.cluster.discovery import ZooKeeperDiscovery
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError, CoordinationUnavailableError, PipelineError
from pipeline.model import BROKER_IDS, BrokerId, HostPort
from pipeline.net.signals import Signal

logger = get_logger(__name__)

BROKER_TOPICS = "/brokers/topics"
CATCH_UP_S = 10.0
_ASK_AGAIN_S = 0.1

_IsReported = Callable[[ClusterMetadata], bool]


class RegisteredTopics:
    """All topics in ZooKeeper. Brokers hear of a change a moment later."""

    def __init__(self) -> None:
        self.names: frozenset[str] | None = None
        """None with a bootstrap list, and until ZooKeeper has answered."""
        self._changed = Signal()

    def note(self, names: frozenset[str]) -> None:
        """Take note of the topics in ZooKeeper."""
        self.names = names
        self._changed.notify()

    async def wait(self) -> None:
        """Wait for the next change: for ever with a bootstrap list."""
        await self._changed.wait()


class WatchedCluster(Protocol):
    """The methods of a cluster that the watches need."""

    view: ClusterMetadata
    registered_topics: RegisteredTopics

    @property
    def tracked(self) -> frozenset[str]:
        """Topics that each refresh of the metadata includes."""

    def take_up(self, address: HostPort) -> None:
        """Take note that a broker has registered."""

    def drop_broker(self, broker: BrokerId, address: HostPort | None = None) -> None:
        """Take note that a broker is no longer registered, or not at this address."""

    async def refresh(self) -> ClusterMetadata:
        """Fetch the metadata now. Raises PipelineError."""

    async def wait_for_new_view(self) -> None:
        """Wait for the next refresh of the metadata."""


async def watch_registrations(cluster: WatchedCluster, discovery: ZooKeeperDiscovery) -> None:
    """Refresh the view after each of the four events, for ever."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_logged, _watch_brokers, cluster, discovery)
        nursery.start_soon(_logged, _watch_topics, cluster, discovery)
        watched: set[str] = set()
        while True:
            for topic in cluster.tracked - watched:
                watched.add(topic)
                nursery.start_soon(_logged, _watch_partitions, cluster, discovery, topic)
            await cluster.wait_for_new_view()


async def _logged(watch: Callable[..., Awaitable[None]], *arguments: object) -> None:
    """Go on without a watch that ZooKeeper refuses."""
    try:
        await watch(*arguments)
    except CoordinationError as error:
        logger.warning("watch_ended", error=str(error))


async def _watch_brokers(cluster: WatchedCluster, discovery: ZooKeeperDiscovery) -> None:
    known: dict[BrokerId, HostPort | None] | None = None
    async with _catching_up(cluster) as catch_up:
        async for names in discovery.zookeeper.watch_children(BROKER_IDS):
            before, known = known, await _addresses(discovery, names)
            if before is None:
                is_reported = partial(_has_brokers, known, {})
                if cluster.view.brokers and not is_reported(cluster.view):
                    catch_up(is_reported)
                continue
            left = {broker: address for broker, address in before.items() if known.get(broker) != address}
            for broker, address in left.items():
                if broker not in known:
                    cluster.drop_broker(broker)
                elif address is not None and address not in known.values():
                    cluster.drop_broker(broker, address)
            for broker, address in known.items():
                if address is not None and before.get(broker) != address:
                    cluster.take_up(address)
            if known != before:
                catch_up(partial(_has_brokers, known, left))


async def _addresses(discovery: ZooKeeperDiscovery, names: Collection[str]) -> dict[BrokerId, HostPort | None]:
    """Return the registered brokers, once ZooKeeper answers."""
    while True:
        with suppress(CoordinationUnavailableError):
            return await discovery.addresses(names)
        await trio.sleep(_ASK_AGAIN_S)


async def _watch_topics(cluster: WatchedCluster, discovery: ZooKeeperDiscovery) -> None:
    known: frozenset[str] | None = None
    async with _catching_up(cluster) as catch_up:
        async for names in discovery.zookeeper.watch_children(BROKER_TOPICS):
            before, known = known, frozenset(names)
            cluster.registered_topics.note(known)
            if before is not None and (before ^ known) & cluster.tracked:
                catch_up(partial(_has_topics, known & cluster.tracked, cluster.tracked - known))


async def _watch_partitions(cluster: WatchedCluster, discovery: ZooKeeperDiscovery, topic: str) -> None:
    assigned: object = None
    async with _catching_up(cluster) as catch_up:
        async for value in discovery.zookeeper.watch_data(f"{BROKER_TOPICS}/{topic}"):
            before, assigned = assigned, None if value is None else _partitions(value[0])
            if isinstance(assigned, dict) and assigned != before:
                is_reported = partial(_has_partitions, topic, len(assigned))
                if before is not None or not is_reported(cluster.view):
                    catch_up(is_reported)


def _has_brokers(
    known: Mapping[BrokerId, HostPort | None], left: Mapping[BrokerId, HostPort | None], view: ClusterMetadata
) -> bool:
    """True if a view has the registered brokers, and none where it no longer is. Brokers leave out those of other
    listeners, whose addresses are None.
    """
    is_there = all(broker in view.brokers for broker, address in known.items() if address is not None)
    return is_there and not any(
        broker in view.brokers and (broker not in known or view.brokers[broker].address == address)
        for broker, address in left.items()
    )


def _has_topics(added: Collection[str], removed: Collection[str], view: ClusterMetadata) -> bool:
    is_added = all(topic in view.topics and view.topics[topic].led_partitions for topic in added)
    return is_added and not any(topic in view.topics for topic in removed)


def _has_partitions(topic: str, count: int, view: ClusterMetadata) -> bool:
    return topic in view.topics and len(view.topics[topic].led_partitions) >= count


def _partitions(data: bytes) -> object:
    """Return the replicas of each partition; None for something else."""
    try:
        found = json.loads(data)
        return found.get("partitions") if isinstance(found, dict) else None
    except (ValueError, RecursionError):
        return None


@asynccontextmanager
async def _catching_up(cluster: WatchedCluster) -> AsyncIterator[Callable[[_IsReported], None]]:
    """Yield a function that has the view refreshed until it has the newest change; changes before it are given up."""
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        def catch_up(is_reported: _IsReported) -> None:
            nonlocal scope
            scope.cancel()
            scope = trio.CancelScope(deadline=trio.current_time() + CATCH_UP_S)
            nursery.start_soon(_refresh_until, cluster, is_reported, scope)

        yield catch_up


async def _refresh_until(cluster: WatchedCluster, is_reported: _IsReported, scope: trio.CancelScope) -> None:
    with scope:
        while True:
            with suppress(PipelineError):  # no broker answers yet
                if is_reported(await cluster.refresh()):
                    return
            await trio.sleep(_ASK_AGAIN_S)
