"""The shell around the metadata: finds brokers, keeps the view fresh, sends requests to the right one.

Owns the connections, for as long as `open_cluster` runs. Any number of producers and consumers share one cluster.
Each wait is bounded by the deadline it was given or by a setting.
"""

import math
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
import trio

from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.backoff import backoff_ms
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.cluster.discovery import Discovery, from_bootstrap
from pipeline.client.cluster.fallen_epochs import FallenEpochs
from pipeline.client.cluster.metadata import ClusterView, TopicView, merge
from pipeline.errors import (
    ConfigurationError,
    CoordinationError,
    DeadlineExceededError,
    NetworkError,
    PipelineError,
    ProtocolError,
)
from pipeline.model import BrokerId, HostPort
from pipeline.net.connection_pool import Connect, ConnectionPool, open_connection_pool
from pipeline.net.signals import Signal, Wakeup
from pipeline.net.transport import connect
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pipeline.protocol.primitives import MAX_STRING_BYTES
from pipeline.protocol.schema import Message

logger = structlog.get_logger()

UNREACHABLE = (NetworkError, DeadlineExceededError, ProtocolError)
"""What a request to a broker raises when there is no answer that can be read; its outcome is unknown."""

LEAST_ATTEMPT_S = 1.0
"""Enough for a broker that is well: where many are asked one after the other, each gets so long."""
ASKED_AGAIN_AFTER_S = 30.0
"""A known broker that did not answer has a turn again after so long, of `LEAST_ATTEMPT_S`."""
_NAME_SHOWN = 40


class Cluster:
    """A cluster as its clients share it. Made by `open_cluster`."""

    def __init__(self, config: ClientConfig, pool: ConnectionPool, discover: Discovery) -> None:
        self.config = config
        self.view = ClusterView()
        self._pool = pool
        self._discover = discover
        self._topics: set[str] = set()
        self._refreshing = trio.Lock()
        self._refreshes_begun = 0
        self._last_refreshed = 0
        self._refresh_wanted = Wakeup()
        self._view_replaced = Signal()
        self._failed_at: dict[HostPort, float] = {}
        self._told_last: BrokerId | None = None
        self._fallen_epochs = FallenEpochs()

    def track(self, topics: Iterable[str]) -> None:
        """Have these topics in every further metadata refresh.

        Raises KafkaError for a name that no request can hold: it would keep all others from being refreshed.
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

    def refresh_soon(self) -> None:
        """Have the metadata fetched again in the background; many calls make one refresh."""
        self._refresh_wanted.set()

    async def refresh(self, *, timeout_s: float | None = None) -> ClusterView:
        """Fetch the metadata now, or share in a fetch that began after this call.

        Another broker is asked each time: one that is cut off from ZooKeeper tells for ever what was.
        Raises NetworkError or DeadlineExceededError when no broker answered.
        """
        asked_at = self._refreshes_begun
        wait_s = self._api_timeout_s(timeout_s)
        deadline = trio.current_time() + wait_s
        with trio.move_on_at(deadline) as waiting:  # another refresh may have a later deadline
            await self._refreshing.acquire()
        if waiting.cancelled_caught:
            raise DeadlineExceededError(f"no broker of the cluster told its metadata within {wait_s:g} s")
        try:
            if self._last_refreshed <= asked_at:
                self._refreshes_begun += 1
                topics = tuple(MetadataRequestTopic(name=name) for name in sorted(self._topics))
                request = MetadataRequest(topics=topics, allow_auto_topic_creation=self.config.allow_auto_create_topics)
                told_by, response = await self._ask_any(request, deadline, is_answered_at_once=True)
                fallen = self._fallen_epochs.note(
                    self.view, response, told_by, [*self._sound(), told_by], trio.current_time()
                )
                self.view = merge(self.view, response, fallen)
                self._told_last = next((broker for broker, address in self._known() if address == told_by), None)
                self._last_refreshed = self._refreshes_begun
                self._view_replaced.notify()
        finally:
            self._refreshing.release()
        return self.view

    async def wait_for_new_view(self) -> None:
        """Wait until the metadata was fetched again, for whatever reason: at the latest when it is old."""
        await self._view_replaced.wait()

    async def fetch_all_topics(self, *, timeout_s: float | None = None) -> ClusterView:
        """A view of all topics of the cluster, apart from the shared one."""
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        response: MetadataResponse = await self.request_any(request, timeout_s=timeout_s)
        return merge(ClusterView(), response)

    async def topic(self, name: str, *, timeout_s: float | None = None) -> TopicView:
        """The topic, once it exists and one of its partitions has a leader.

        Raises KafkaError with what the cluster says of it when that does not come true in time.
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

        Requests that may wait at the broker have a `lane` of their own, lest others wait behind them. Raises what is
        in UNREACHABLE, and KafkaError where broker and client have no version in common, or the request holds a value
        that cannot be encoded.
        """
        return await self._pool.request(self._address_of(broker), message, timeout_s=timeout_s, lane=lane)

    async def request_any(
        self, message: Message, *, timeout_s: float | None = None, is_answered_at_once: bool = True
    ) -> Any:
        """Send to the first broker that answers: a known one, else one that discovery gives or that failed before.

        A broker that hangs gets a part of the time, and the next ones are asked in the rest, unless the answer may wait
        for what no other broker has sooner. Raises NetworkError, and KafkaError as `request`.
        """
        deadline = trio.current_time() + self._api_timeout_s(timeout_s)
        _, response = await self._ask_any(message, deadline, is_answered_at_once=is_answered_at_once)
        return response

    async def _ask_any(self, message: Message, deadline: float, *, is_answered_at_once: bool) -> tuple[HostPort, Any]:
        """As `request_any`, with the address that answered."""
        failures = 0
        last_error: Exception | None = None
        while True:
            tried: set[HostPort] = set()
            for others in (1, 0):
                found = self._in_turn(retrying=is_answered_at_once) if others else await self._others()
                addresses = [address for address in found if address not in tried]
                for asked, address in enumerate(addresses):
                    left_s = deadline - trio.current_time()
                    parts = len(addresses) - asked + others if is_answered_at_once else 1
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
                        last_error = error
                    else:
                        self._failed_at.pop(address, None)
                        return address, response
            failures += 1
            if not await self.back_off(failures, deadline):
                raise NetworkError(f"no broker of the cluster answers, last error: {last_error}") from last_error

    async def request_controller(self, message: Message, *, timeout_s: float) -> Any:
        """Send to the controller, or to any broker where none is named. Raises NetworkError, DeadlineExceededError."""
        controller = self.view.controller
        if controller is None:
            return await self.request_any(message, timeout_s=timeout_s, is_answered_at_once=False)
        return await self.request(controller, message, timeout_s=timeout_s)

    async def features(self, broker: BrokerId) -> Mapping[str, tuple[int, int]]:
        """What the broker says it can beyond the protocol's versions (KIP-584), as name to (lowest, highest)."""
        return await self._pool.features(self._address_of(broker), timeout_s=self.config.request_timeout_ms / 1000)

    async def back_off(self, failures: int, deadline: float) -> bool:
        """Wait after the n-th failure in a row; False at once if the deadline (trio's clock) would pass meanwhile, also
        where it is NaN.
        """
        delay_s = backoff_ms(failures, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms) / 1000
        if not trio.current_time() + delay_s < deadline:
            return False
        await trio.sleep(delay_s)
        return True

    async def keep_fresh(self) -> None:
        """Refresh when asked to and when the metadata is old, for ever; failures are logged and repeated."""
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
                logger.warning("metadata_refresh_failed", error=str(error))
            await self.back_off(max(failures, 1), math.inf)

    def _address_of(self, broker: BrokerId) -> HostPort:
        endpoint = self.view.brokers.get(broker)
        if endpoint is None:
            raise NetworkError(f"broker {broker} is not registered")
        return endpoint.address

    def _sound(self) -> list[HostPort]:
        """Brokers of the view that answered when they were asked last."""
        return [address for _, address in self._known() if address not in self._failed_at]

    def _in_turn(self, *, retrying: bool) -> list[HostPort]:
        """The sound brokers, from the one after that which told the metadata last; with `retrying` those too that
        failed long ago.
        """
        retried_s = trio.current_time() - ASKED_AGAIN_AFTER_S if retrying else -math.inf
        known = self._known()
        told_last = self._told_last
        if told_last is not None:
            known.sort(key=lambda broker: broker[0] <= told_last)
        return [address for _, address in known if self._failed_at.get(address, -math.inf) <= retried_s]

    async def _others(self) -> list[HostPort]:
        """Brokers that failed, and those the view does not have, for a start and for when all that it has are gone
        (KIP-899). Those that failed last come last: one that says nothing may use up all the time of a call.
        """
        known = [address for _, address in self._known()]
        try:
            found = await self._discover()
        except CoordinationError as error:
            logger.warning("discovery_failed", error=str(error))
            found = ()
        others = dict.fromkeys((*(address for address in known if address in self._failed_at), *found))
        return sorted(others, key=lambda address: self._failed_at.get(address, -math.inf))

    def _known(self) -> list[tuple[BrokerId, HostPort]]:
        """The brokers of the view by id: each tells them in an order of its own."""
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
    """The cluster behind `config.bootstrap`, or behind `discover` (see `discovery.py`), until the block ends.

    Connects when first used. Raises ConfigurationError when there is nowhere to begin.
    """
    if discover is None:
        if not config.bootstrap:
            raise ConfigurationError("bootstrap.servers", "is empty: name at least one broker as host:port")
        discover = from_bootstrap(config.bootstrap)
    async with open_connection_pool(config.client_id, connect) as pool, background_tasks() as nursery:
        cluster = Cluster(config, pool, discover)
        pool.on_lost = cluster.refresh_soon  # all that a broker can say to acks=0 when it leads no more
        nursery.start_soon(cluster.keep_fresh)
        yield cluster
