"""`ConsumerConnector`, the consumer of Kafka 0.7 that shares partitions with its group by ZooKeeper.

A program asks for streams; what it reads from them is of no other member of the group at that time. `membership.py`
does the work.
"""

import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from random import Random

import trio

from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.connector.config import ConnectorConfig
from pipeline.client.connector.connector_znodes import MAX_STREAMS, ConsumerRegistration
from pipeline.client.connector.membership import ConsumerMembership
from pipeline.client.connector.ownership import OwnershipLostError
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.consumption import ConsumptionObserver, NoConsumptionObserver
from pipeline.client.group.listener import RebalanceListener
from pipeline.client.streams.stream import MessageStream
from pipeline.client.streams.topic_filter import TopicFilter
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, CoordinationError, NodeOwnedError, PipelineError
from pipeline.model import Clock, TopicPartition
from pipeline.net.nurseries import unwrapped_errors

LEAVE_TIMEOUT_S = 5.0
"""Time to store offsets and give up partitions after an error or a cancellation."""
RETRY_S = 0.5

logger = get_logger(__name__)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class MessageStreamsExistError(PipelineError):
    """The connector has streams already: of a topic filter, or of one of the topics."""


class ConsumerConnector:
    """A member of a group. Made by `open_consumer_connector`."""

    def __init__(
        self,
        cluster: Cluster,
        zookeeper: CoordinationClient,
        config: ConnectorConfig,
        nursery: trio.Nursery,
        *,
        clock: Clock,
        rng: Random,
        listener: RebalanceListener,
        observer: ConsumptionObserver,
    ) -> None:
        self._observer = observer
        name = config.consumer_id or f"{socket.gethostname()}-{clock()}-{rng.getrandbits(32):08x}"
        self.consumer_id = f"{config.group_id}_{name}"
        """Name of this member in the registries of ZooKeeper."""
        self._cluster = cluster
        self._zookeeper = zookeeper
        self._config = config
        self._nursery = nursery
        self._clock = clock
        self._rng = rng
        self._listener = listener
        self._streams: dict[str, list[MessageStream]] = {}
        self._topic_filter: TopicFilter | None = None
        self._membership: ConsumerMembership | None = None
        self._creating = trio.Lock()
        self._is_shut_down = False

    async def create_message_streams(self, streams: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Return so many new streams of each topic, among which the partitions of this member are shared.

        A topic need not exist yet. Each call starts a rebalance of the group: ask for all topics at once. Returns when
        the member is registered. Raises MessageStreamsExistError, ConfigurationError, CoordinationError.
        """
        for topic, count in streams.items():
            if not _TOPIC.fullmatch(topic):
                raise ConfigurationError("topic", f"{topic!r} can be the name of no topic")
            _check_count(count)
        if not streams:
            raise ConfigurationError("streams", "names no topic")
        async with self._creating:
            self._check_open()
            if self._topic_filter is not None or self._streams.keys() & streams.keys():
                raise MessageStreamsExistError(
                    f"{self.consumer_id} has streams of {sorted(self._streams)}: open another connector for more"
                )
            made = {topic: [await self._new_stream() for _ in range(count)] for topic, count in streams.items()}
            await self._register(made)
        return made

    async def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, streams: int = 1
    ) -> list[MessageStream]:
        """Return new streams of all topics that the filter allows, present and later ones.

        Raises as `create_message_streams`.
        """
        _check_count(streams)
        async with self._creating:
            self._check_open()
            if self._streams:
                raise MessageStreamsExistError(
                    f"{self.consumer_id} has streams already: open another connector for more"
                )
            made = [await self._new_stream() for _ in range(streams)]
            await self._register({topic_filter.regex: made}, topic_filter)
        return made

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member owns now, over all streams."""
        return frozenset() if self._membership is None else self._membership.owned

    async def commit_offsets(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store the next offsets to consume. None: after all that was handed out, also if it is being processed.

        Raises OwnershipLostError for partitions that this member does not own any more, after the others were stored;
        CoordinationError if it is not known whether the offsets are stored; ValueError or TypeError for an impossible
        offset, and stores none then.
        """
        if self._membership is None:
            lost = frozenset(offsets or ())
        else:
            consumed = self._membership.consumed(with_item_in_hand=True) if offsets is None else offsets
            lost = await self._membership.commit(consumed)
        if lost:
            raise OwnershipLostError(lost)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Continue a partition at another offset. Raises OwnershipLostError if this member does not own it.

        Raises ValueError or TypeError for an impossible offset.
        """
        if self._membership is None or not self._membership.seek(topic_partition, offset):
            raise OwnershipLostError([topic_partition])

    async def shutdown(self, timeout_s: float | None = None) -> None:
        """Give up all partitions, after storing the offsets (with automatic commit), and end all streams.

        Readers have `timeout_s` (None: `max_poll_interval_ms`) to finish the items that they have in hand. What the
        caller, or a task that has ended, has in hand is not finished: it is handed out again, unless `commit_offsets`
        was called. Called at the end of the block.
        """
        if timeout_s is None:
            timeout_s = self._config.max_poll_interval_ms / 1000
        self._is_shut_down = True
        try:
            if self._membership is not None:
                await self._membership.leave(timeout_s)
        finally:
            self._end_streams()

    async def _register(self, made: Mapping[str, list[MessageStream]], topic_filter: TopicFilter | None = None) -> None:
        """Register with further streams. Without success the connector is as before."""
        before = self._streams
        self._streams, self._topic_filter = {**before, **made}, topic_filter
        counts = {key: len(streams) for key, streams in self._streams.items()}
        registration = ConsumerRegistration(streams=counts, topic_filter=topic_filter, timestamp_ms=self._clock())
        if self._membership is not None:
            self._membership.subscribe(registration)
            return
        try:
            self._membership = await self._join(registration)
        except BaseException:
            self._streams, self._topic_filter = before, None
            raise

    async def _join(self, registration: ConsumerRegistration) -> ConsumerMembership:
        deadline = trio.current_time() + 2 * self._zookeeper.session_timeout_s
        while True:
            membership = ConsumerMembership(
                self._cluster,
                self._zookeeper,
                self._config,
                self.consumer_id,
                registration,
                stream_of=self._stream_of,
                listener=self._listener,
                rng=self._rng,
                observer=self._observer,
            )
            try:
                await self._nursery.start(self._take_part, membership)
            except NodeOwnedError:  # perhaps of an earlier process of this name, whose session has not ended yet
                if trio.current_time() > deadline:
                    raise
                await trio.sleep(RETRY_S)
            except BaseException:  # perhaps it is registered already
                with _leaving():
                    await membership.leave(0)
                raise
            else:
                return membership

    async def _take_part(self, membership: ConsumerMembership, task_status: trio.TaskStatus[None]) -> None:
        is_started = False

        class Status:
            def started(self, value: None = None) -> None:
                nonlocal is_started
                is_started = True
                task_status.started(value)

        try:
            with unwrapped_errors():
                await membership.run(Status())
        except NodeOwnedError as error:
            if not is_started:
                raise
            self._end_streams(error)
        except Exception:
            self._end_streams()  # readers need not know; the block raises the error
            raise

    async def _new_stream(self) -> MessageStream:
        stream: MessageStream = await self._nursery.start(self._serve_stream)
        return stream

    async def _serve_stream(self, task_status: trio.TaskStatus[MessageStream]) -> None:
        async with open_consumer(self._cluster, self._config, observer=self._observer) as consumer:
            task_status.started(MessageStream(consumer, self._holds))
            await trio.sleep_forever()

    def _check_open(self) -> None:
        if self._is_shut_down:
            raise MessageStreamsExistError(f"{self.consumer_id} is shut down: open another connector")
        if self._membership is not None and self._membership.has_ended:
            raise MessageStreamsExistError(f"{self.consumer_id} is no member any more: open another connector")

    def _holds(self) -> bool:
        return self._membership is not None and self._membership.lease.holds()

    def _stream_of(self, topic: str, number: int) -> MessageStream:
        key = topic if self._topic_filter is None else self._topic_filter.regex
        return self._streams[key][number]

    def _end_streams(self, error: PipelineError | None = None) -> None:
        for streams in self._streams.values():
            for stream in streams:
                stream.end(error)


def _check_count(streams: int) -> None:
    if isinstance(streams, bool) or not isinstance(streams, int) or not 1 <= streams <= MAX_STREAMS:
        raise ConfigurationError("streams", f"is {streams!r}, must be from 1 to {MAX_STREAMS}")


@contextmanager
def _leaving() -> Iterator[None]:
    """Leave within LEAVE_TIMEOUT_S, also when cancelled. A failure of ZooKeeper hides no other error."""
    with trio.CancelScope(shield=True), trio.move_on_after(LEAVE_TIMEOUT_S):
        try:
            yield
        except CoordinationError as error:
            logger.warning("connector_not_left", error=str(error))


@asynccontextmanager
async def open_consumer_connector(
    cluster: Cluster,
    zookeeper: str | CoordinationClient,
    config: ConnectorConfig,
    *,
    clock: Clock,
    rng: Random,
    listener: RebalanceListener | None = None,
    observer: ConsumptionObserver | None = None,
) -> AsyncIterator[ConsumerConnector]:
    """Open a member of a group, without streams, until the block ends.

    `zookeeper`: the connect string of the cluster's ZooKeeper, `host:port,host:port/chroot`, for a session of its own;
    or an open client, whose session the member shares. `listener` is notified of partitions that come and go; for
    example it seeks the offsets that a program has stored with its results. `observer` is notified of batches that are
    fetched and of offsets that are stored.

    A block that ends normally shuts down (`ConsumerConnector.shutdown`). After an exception readers have no time to
    finish, and the partitions are given up within 5 s, or by the end of the session.
    """
    async with AsyncExitStack() as stack:
        client = zookeeper
        if isinstance(client, str):
            client = await stack.enter_async_context(
                open_zookeeper(
                    client,
                    session_timeout_ms=config.zookeeper_session_timeout_ms,
                    connect_timeout_ms=config.zookeeper_connection_timeout_ms,
                    security=config.zookeeper_security,
                )
            )
        async with background_tasks() as nursery:
            connector = ConsumerConnector(
                cluster,
                client,
                config,
                nursery,
                clock=clock,
                rng=rng,
                listener=listener or RebalanceListener(),
                observer=observer or NoConsumptionObserver(),
            )
            try:
                yield connector
                await connector.shutdown()
            except BaseException:
                with _leaving():
                    await connector.shutdown(timeout_s=0)
                raise
