"""The shell around the metadata: finds brokers, keeps the view fresh, sends requests to the right broker.

Owns the connections, for as long as `open_cluster` runs. Any number of producers and consumers share one cluster.
Each wait is bounded by the deadline it was given or by a setting.
"""

import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.backoff import backoff_ms
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.cluster.discovery import Discovery, ZooKeeperDiscovery, from_bootstrap
from pipeline.client.cluster.fallen_epochs import FallenEpochs
from pipeline.client.cluster.metadata import ClusterMetadata, TopicMetadata, addresses_left, merge
from pipeline.client.cluster.registrations import RegisteredTopics, watch_registrations
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    ConfigurationError,
    CoordinationError,
    CoordinationUnavailableError,
    DeadlineExceededError,
    NetworkError,
    PipelineError,
    ProtocolError,
)
from pipeline.model import BrokerId, HostPort
from pipeline.net.connection_pool import ConnectionPool, LostConnection, open_connection_pool
from pipeline.net.dialing import Connect
from pipeline.net.signals import Signal, Wakeup
from pipeline.net.transport import connect
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pipeline.protocol.primitives import MAX_STRING_BYTES
from pipeline.protocol.schema import Message

logger = get_logger(__name__)

UNREACHABLE = (NetworkError, DeadlineExceededError, ProtocolError)
"""Errors of a request without a readable answer; its outcome is unknown."""

LEAST_ATTEMPT_S = 1.0
"""Shortest attempt, enough for a healthy broker, if many are asked one after the other."""
ASKED_AGAIN_AFTER_S = 30.0
"""Time after which a known broker that failed is asked again, for `LEAST_ATTEMPT_S`."""
DISCOVERY_S = 5.0
"""Time for ZooKeeper to name the brokers, if some are known that may answer again meanwhile."""
_NAME_SHOWN = 40


class Cluster:
    """A cluster, shared by its clients. Made by `open_cluster`."""

    def __init__(self, config: ClientConfig, pool: ConnectionPool, discover: Discovery) -> None:
        self.config = config
        self.view = ClusterMetadata()
        self.registered_topics = RegisteredTopics()
        self._pool = pool
        self._discover = discover
        self._topics: set[str] = set()
        self._refreshing = trio.Lock()
        self._refreshes_begun = 0
        self._last_refreshed = 0
        self._refresh_wanted = Wakeup()
        self._view_replaced = Signal()
        self._failed_at: dict[HostPort, float] = {}
        self._not_discovered: CoordinationError | None = None
        """Why the last discovery found no broker."""
        self._last_source: BrokerId | None = None
        self._fallen_epochs = FallenEpochs()
        self._loss_watchers: list[Callable[[LostConnection], None]] = []
        self._lanes = 0

    def track(self, topics: Iterable[str]) -> None:
        """Include these topics in every further metadata refresh.

        Raises KafkaError for a name that no request can hold: it would prevent the refresh of all others.
        """
        new = set(topics) - self._topics
        for name in new:
            if not _is_encodable(name):
                shown = str(name)
                reason = f"{shown[:_NAME_SHOWN]!a}... ({len(shown)} characters) can be the name of no topic"
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        if new:
            self._topics |= new
            self.refresh_soon()

    @property
    def tracked(self) -> frozenset[str]:
        """Topics that each refresh of the metadata includes."""
        return frozenset(self._topics)

    def take_up(self, address: HostPort) -> None:
        """Ask a broker again that has just registered, though requests to it failed a moment ago."""
        self._failed_at.pop(address, None)

    def drop_broker(self, broker: BrokerId, address: HostPort | None = None) -> None:
        """Close the connections to a broker that is no longer registered, or not at this address. Requests under way
        to it fail, and are tried again at other brokers.
        """
        endpoint = self.view.brokers.get(broker)
        if address is None and endpoint is not None:
            address = endpoint.address
        if address is not None:
            self._failed_at[address] = trio.current_time()
            self._pool.drop(address, f"broker {broker} is no longer registered", is_idle_only=False)

    async def watch_losses(self, watcher: Callable[[LostConnection], None]) -> None:
        """Call `watcher` with each connection that is lost, until cancelled.

        The call comes before another connection of the lane is opened.
        """
        self._loss_watchers.append(watcher)
        try:
            await trio.sleep_forever()
        finally:
            self._loss_watchers.remove(watcher)

    def note_loss(self, lost: LostConnection) -> None:
        """Take note that a connection was lost."""
        self.refresh_soon()
        for watcher in list(self._loss_watchers):
            watcher(lost)

    def is_asked(self, address: HostPort, lanes: str) -> bool:
        """Return True if a request to a broker is under way in a lane whose name begins so."""
        return self._pool.is_asked(address, lanes)

    def refresh_soon(self) -> None:
        """Refresh the metadata in the background; many calls make one refresh."""
        self._refresh_wanted.set()

    async def refresh(self, *, timeout_s: float | None = None) -> ClusterMetadata:
        """Fetch the metadata now, or share a fetch that began after this call.

        Each refresh asks another broker, since a broker that is cut off from ZooKeeper reports outdated metadata.
        Raises NetworkError or DeadlineExceededError if no broker answered.
        """
        asked_at = self._refreshes_begun
        wait_s = self._api_timeout_s(timeout_s)
        deadline = trio.current_time() + wait_s
        with trio.move_on_at(deadline) as waiting:  # a refresh of another task may have a later deadline
            await self._refreshing.acquire()
        if waiting.cancelled_caught:
            reason = "" if self._not_discovered is None else f": {self._not_discovered}"
            raise DeadlineExceededError(f"no broker of the cluster reported its metadata within {wait_s:g} s{reason}")
        try:
            if self._last_refreshed <= asked_at:
                self._refreshes_begun += 1
                topics = tuple(MetadataRequestTopic(name=name) for name in sorted(self._topics))
                request = MetadataRequest(topics=topics, allow_auto_topic_creation=self.config.allow_auto_create_topics)
                source, response = await self._ask_any(request, deadline, is_answered_at_once=True)
                fallen = self._fallen_epochs.note(
                    self.view, response, source, [*self._sound(), source], trio.current_time()
                )
                before, self.view = self.view, merge(self.view, response, fallen)
                self._forget_addresses(before)
                self._last_source = next((broker for broker, address in self._known() if address == source), None)
                self._last_refreshed = self._refreshes_begun
                self._view_replaced.notify()
        finally:
            self._refreshing.release()
        return self.view

    async def wait_for_new_view(self) -> None:
        """Wait for the next refresh of the metadata, at the latest when they are old."""
        await self._view_replaced.wait()

    async def fetch_all_topics(self, *, timeout_s: float | None = None) -> ClusterMetadata:
        """Return a view of all topics, apart from the shared view."""
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        response: MetadataResponse = await self.request_any(request, timeout_s=timeout_s)
        return merge(ClusterMetadata(), response)

    async def topic(self, name: str, *, timeout_s: float | None = None) -> TopicMetadata:
        """Wait until the topic exists and a partition has a leader, and return it.

        Raises KafkaError with the cluster's last answer if that takes too long.
        """
        topic = self.view.topics.get(name)
        if topic is not None and topic.led_partitions:
            return topic
        self.track((name,))
        deadline = trio.current_time() + self._api_timeout_s(timeout_s)
        failures = 0
        refusal: KafkaError | None = None
        while True:
            try:
                view = await self.refresh(timeout_s=deadline - trio.current_time())
            except UNREACHABLE as error:
                raise refusal or error from None
            topic = view.topics.get(name)
            if topic is not None and topic.led_partitions:
                return topic
            refusal = KafkaError(view.errors.get(name, ErrorCode.LEADER_NOT_AVAILABLE), f"topic {name}")
            failures += 1
            if not refusal.retriable or not await self.back_off(failures, deadline):
                raise refusal

    async def request(self, broker: BrokerId, message: Message, *, timeout_s: float, lane: str = "") -> Any:
        """Send to a broker and return its response; None for Produce with acks 0.

        Requests that may wait at the broker have their own `lane`, so that others do not wait behind them. Raises the
        errors of UNREACHABLE, and KafkaError if broker and client have no version in common, or a value of the request
        cannot be encoded.
        """
        return await self._pool.request(self._address_of(broker), message, timeout_s=timeout_s, lane=lane)

    def new_lane(self, purpose: str) -> str:
        """Return a lane that no other client of this cluster has. Close it with `close_lane`."""
        self._lanes += 1
        return f"{purpose} {self._lanes}"

    def close_lane(self, lane: str) -> None:
        """Close the connections of a lane, whose requests under way fail."""
        self._pool.close_lane(lane)

    def round_trip_s(self, broker: BrokerId) -> float | None:
        """Return the least time in which a broker answered on a new connection; None if there was none."""
        endpoint = self.view.brokers.get(broker)
        return None if endpoint is None else self._pool.round_trip_s(endpoint.address)

    async def request_any(
        self, message: Message, *, timeout_s: float | None = None, is_answered_at_once: bool = True
    ) -> Any:
        """Send to known brokers until one answers, then to brokers that discovery finds or that failed before.

        A broker that hangs gets a part of the time, and the next brokers the rest, unless the answer may take long at
        any broker (`is_answered_at_once` False). Raises NetworkError, and KafkaError as `request`.
        """
        deadline = trio.current_time() + self._api_timeout_s(timeout_s)
        _, response = await self._ask_any(message, deadline, is_answered_at_once=is_answered_at_once)
        return response

    async def _ask_any(self, message: Message, deadline: float, *, is_answered_at_once: bool) -> tuple[HostPort, Any]:
        """Send as `request_any`, and return the answering address too."""
        failures = 0
        last_error: Exception | None = None
        while True:
            tried: set[HostPort] = set()
            for others in (1, 0):  # 1: the known brokers, which leave a share of the time to the others
                found = self._in_turn(retrying=is_answered_at_once) if others else await self._others(deadline)
                addresses = [address for address in found if address not in tried]
                for asked, address in enumerate(addresses):
                    left_s = deadline - trio.current_time()
                    # A part is left for the others, or for another connection: a balancer may lead it elsewhere.
                    parts = len(addresses) - asked + 1 if is_answered_at_once else 1
                    attempt_s = min(self.config.request_timeout_ms / 1000, left_s, max(LEAST_ATTEMPT_S, left_s / parts))
                    if others and address in self._failed_at:
                        attempt_s = min(attempt_s, LEAST_ATTEMPT_S)
                    if attempt_s <= 0:
                        break
                    tried.add(address)
                    try:
                        response = await self._pool.request(address, message, timeout_s=attempt_s)
                    except UNREACHABLE as error:
                        self._failed_at[address] = trio.current_time()
                        # An attempt that the end of the time cut short says less than the failure before it.
                        is_cut_short = attempt_s < LEAST_ATTEMPT_S and isinstance(error, DeadlineExceededError)
                        last_error = last_error or error if is_cut_short else error
                    except KafkaError as error:
                        if error.code is ErrorCode.INVALID_REQUEST:  # no broker could take it
                            raise
                        last_error = error
                    else:
                        self._failed_at.pop(address, None)
                        return address, response
            if isinstance(last_error, KafkaError):
                raise last_error
            failures += 1
            if not await self.back_off(failures, deadline):
                reason = last_error or self._not_discovered or "no time was left to ask a broker"
                raise NetworkError(f"no broker of the cluster answers: {reason}") from last_error

    async def request_controller(self, message: Message, *, timeout_s: float) -> Any:
        """Send to the controller, or to any broker if none is known. Raises NetworkError, DeadlineExceededError."""
        controller = self.view.controller
        if controller is None:
            return await self.request_any(message, timeout_s=timeout_s, is_answered_at_once=False)
        return await self.request(controller, message, timeout_s=timeout_s)

    async def features(self, broker: BrokerId) -> Mapping[str, tuple[int, int]]:
        """Return the broker's features beyond the protocol's versions (KIP-584), as name to (lowest, highest)."""
        return await self._pool.features(self._address_of(broker), timeout_s=self.config.request_timeout_ms / 1000)

    async def back_off(self, failures: int, deadline: float) -> bool:
        """Wait after the n-th failure in a row; False at once if the deadline (trio's clock) is NaN or would pass."""
        delay_s = backoff_ms(failures, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms) / 1000
        if not trio.current_time() + delay_s < deadline:
            return False
        await trio.sleep(delay_s)
        return True

    async def keep_fresh(self) -> None:
        """Refresh the metadata on request and when they are old, for ever; failures are logged and retried."""
        failures = 0
        while True:
            with trio.move_on_after(self.config.metadata_max_age_ms / 1000):
                await self._refresh_wanted.wait_and_clear()
            try:
                await self.refresh()
                failures = 0
            except (PipelineError, KafkaError) as error:
                failures += 1
                self._refresh_wanted.set()
                servers = ",".join(map(str, self.config.bootstrap)) or "found through ZooKeeper"
                logger.warning("metadata_refresh_failed", cluster=servers, error=str(error))
            await self.back_off(max(failures, 1), math.inf)

    def _forget_addresses(self, before: ClusterMetadata) -> None:
        """Close the connections to addresses at which no broker is any more, and to those that only discovery names: a
        connection through a balancer ends at a broker that may die unnoticed.
        """
        for address in addresses_left(before, self.view):
            self._pool.drop(address, f"no broker is at {address} any more", is_idle_only=True)
        known = {address for _, address in self._known()}
        if known:
            self._pool.keep_only(known)
            forgotten = trio.current_time() - ASKED_AGAIN_AFTER_S
            self._failed_at = {
                address: at for address, at in self._failed_at.items() if address in known or at > forgotten
            }

    def _address_of(self, broker: BrokerId) -> HostPort:
        endpoint = self.view.brokers.get(broker)
        if endpoint is None:
            raise NetworkError(f"broker {broker} is not registered")
        return endpoint.address

    def _sound(self) -> list[HostPort]:
        """Brokers of the view whose last request was answered."""
        return [address for _, address in self._known() if address not in self._failed_at]

    def _in_turn(self, *, retrying: bool) -> list[HostPort]:
        """Return the sound brokers, beginning after the source of the last metadata; with `retrying` also brokers that
        failed long ago.
        """
        retried_s = trio.current_time() - ASKED_AGAIN_AFTER_S if retrying else -math.inf
        known = self._known()
        last_source = self._last_source
        if last_source is not None:
            known.sort(key=lambda broker: broker[0] <= last_source)
        return [address for _, address in known if self._failed_at.get(address, -math.inf) <= retried_s]

    async def _others(self, deadline: float) -> list[HostPort]:
        """Return brokers that failed, and brokers that only discovery knows: for the start, and if all others are
        gone (KIP-899). The last to fail comes last, since a broker that hangs may use up the time of a call.
        """
        known = [address for _, address in self._known()]
        found: Sequence[HostPort] = ()
        # A call whose time ends in the middle of an attempt is told what the attempt before has found.
        self._not_discovered = self._not_discovered or CoordinationUnavailableError("", "ZooKeeper does not answer")
        # A ZooKeeper that hangs leaves time for the known brokers.
        with trio.move_on_at(min(deadline, trio.current_time() + DISCOVERY_S) if known else deadline):
            try:
                found = await self._discover()
                self._not_discovered = None
            except CoordinationError as error:
                self._not_discovered = error
        if self._not_discovered is not None:
            logger.warning("discovery_failed", error=str(self._not_discovered))
        others = dict.fromkeys((*(address for address in known if address in self._failed_at), *found))
        return sorted(others, key=lambda address: self._failed_at.get(address, -math.inf))

    def _known(self) -> list[tuple[BrokerId, HostPort]]:
        """Return the brokers of the view by id, since each lists them in its own order."""
        return sorted((broker.id, broker.address) for broker in self.view.brokers.values())

    def _api_timeout_s(self, timeout_s: float | None) -> float:
        return self.config.default_api_timeout_ms / 1000 if timeout_s is None else timeout_s


def _is_encodable(name: str) -> bool:
    try:
        return isinstance(name, str) and len(name.encode()) <= MAX_STRING_BYTES
    except UnicodeEncodeError:
        return False


@asynccontextmanager
async def open_cluster(
    config: ClientConfig, *, discover: Discovery | None = None, connect: Connect = connect
) -> AsyncIterator[Cluster]:
    """Open the cluster of `config.bootstrap`, or of `discover` (see `discovery.py`), until the block ends.

    Connects when first used. With `from_zookeeper`, changes of brokers, topics and partitions are taken up when
    ZooKeeper reports them. Raises ConfigurationError if there is neither.
    """
    if discover is None:
        if not config.bootstrap:
            raise ConfigurationError("bootstrap.servers", "is empty: name at least one broker as host:port")
        discover = from_bootstrap(config.bootstrap)
    async with (
        open_connection_pool(config.client_id, config.security.dialer(connect)) as pool,
        background_tasks() as nursery,
    ):
        cluster = Cluster(config, pool, discover)
        pool.on_lost = cluster.note_loss  # a broker that no longer leads can only close the connection of acks=0
        nursery.start_soon(cluster.keep_fresh)
        if isinstance(discover, ZooKeeperDiscovery):
            nursery.start_soon(watch_registrations, cluster, discover)
        yield cluster
