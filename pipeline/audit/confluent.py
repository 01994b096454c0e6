"""Counts for the audit what producers and consumers of confluent-kafka publish, and commit.

    with count_deliveries("east-1:9092", datacenter="east", topics=["clicks"]) as counted:
        producer = Producer({"bootstrap.servers": "east-1:9092", "on_delivery": counted.on_delivery})
        producer.produce("clicks", b"/home")
        producer.flush()

    with count_consumption("east-1:9092", datacenter="east", group="exporter") as counted:
        settings = {"bootstrap.servers": "east-1:9092", "group.id": "exporter", "on_commit": counted.on_commit}
        consumer = Consumer(settings)
        consumer.subscribe(["clicks"], on_assign=counted.on_assign)
        while message := consumer.poll(10):
            counted.consumed(message)
        consumer.close()

A thread of its own reports the counts, through this package's client; confluent-kafka itself is not imported.
"""

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from random import Random, SystemRandom
from typing import Any, Final, Generic, Protocol, TypeVar

import trio

from pipeline.audit.counting.counted_life import new_life, reporting
from pipeline.audit.counting.group_counter import GroupCounter
from pipeline.audit.counting.lives import END_TIMEOUT_S, new_instance, open_life
from pipeline.audit.counting.producer_counter import LifeClock, ProducerCounter
from pipeline.audit.counting.publisher import DEFAULT_INTERVAL_S
from pipeline.audit.counting.record_counter import RecordCounter
from pipeline.audit.counting.record_group import RecordGroupCounter
from pipeline.audit.counting.shared_counts import RecordOutcome
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.sync.sync_producer import system_clock
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError
from pipeline.model import Clock, TopicPartition
from pipeline.net.nurseries import essential_error
from pipeline.records.tally import DEFAULT_WINDOW_MS
from pipeline.settings import parse_addresses

MESSAGE_TIMEOUT_MS: Final = 300_000
"""Default of `message.timeout.ms` (`delivery.timeout.ms`) of confluent-kafka: by then each record has its outcome."""

NOT_WRITTEN: Final = frozenset({10, 29, 44, 87, -152, -188, -190})
"""Errors of records that no broker has written: too large, not authorized, refused by policy, invalid, purged from the
queue, unknown topic, unknown partition. After other errors a broker may have the record."""

NO_TIMESTAMP_KIND: Final = 0
"""Type of a timestamp that is not known, `TIMESTAMP_NOT_AVAILABLE`."""

NO_TIMESTAMP_MS: Final = -1
"""Timestamp of a record that has none: brokers count it so, too."""

_JOIN_S: Final = END_TIMEOUT_S + 5.0

_CountsT = TypeVar("_CountsT")

logger = get_logger(__name__)


class DeliveryFault(Protocol):
    """`KafkaError` of confluent-kafka."""

    def code(self) -> int:
        """Return the number of the error."""


class DeliveredMessage(Protocol):
    """`Message` of confluent-kafka."""

    def topic(self) -> str | None:
        """Return the topic."""

    def partition(self) -> int | None:
        """Return the partition."""

    def offset(self) -> int | None:
        """Return the offset, if the broker gave it."""

    def timestamp(self) -> tuple[int, int]:
        """Return the type of the timestamp, and the timestamp in ms."""


class ConsumedMessage(DeliveredMessage, Protocol):
    """`Message` of confluent-kafka that a consumer returned."""

    def error(self) -> DeliveryFault | None:
        """Return the error that the message stands for; None if it is a record."""


class PlacedOffset(Protocol):
    """`TopicPartition` of confluent-kafka: a partition, and its committed offset if there is one."""

    @property
    def topic(self) -> str:
        """Name of the topic."""

    @property
    def partition(self) -> int:
        """Number of the partition."""

    @property
    def offset(self) -> int:
        """Next offset to read; negative if there is none."""

    @property
    def error(self) -> DeliveryFault | None:
        """Reason why the offset was not committed."""


OnDelivery = Callable[[Any, Any], None]
"""Delivery callback of a program: takes the error or None, and the message."""


class DeliveryCounter:
    """Counts delivery reports. Made by `count_deliveries`; threads and producers may share it."""

    def __init__(self, records: RecordCounter, clock: Clock) -> None:
        self._records = records
        self._clock = clock

    def on_delivery(self, error: DeliveryFault | None, message: DeliveredMessage) -> None:
        """Count one record: the setting `on_delivery` of a producer, or the argument of `produce`."""
        kind, timestamp_ms = message.timestamp()
        offset, partition = message.offset(), message.partition()
        outcome = RecordOutcome(
            message.topic() or "",
            -1 if partition is None else partition,
            -1 if offset is None or offset < 0 else offset,
            self._clock() if kind == NO_TIMESTAMP_KIND else timestamp_ms,
        )
        if error is None:
            self._records.note(outcome)
        else:
            is_placed = outcome.partition >= 0  # without a partition it was never sent
            self._records.failed(outcome, outcome_unknown=is_placed and error.code() not in NOT_WRITTEN)

    def calling(self, callback: OnDelivery) -> OnDelivery:
        """Return a callback that counts the record, and then calls `callback`."""

        def on_delivery(error: DeliveryFault | None, message: DeliveredMessage) -> None:
            self.on_delivery(error, message)
            callback(error, message)

        return on_delivery


@contextmanager
def count_deliveries(
    bootstrap: str = "",
    *,
    datacenter: str,
    topics: Sequence[str] = (),
    client: ClientConfig | None = None,
    host: str | None = None,
    window_ms: int = DEFAULT_WINDOW_MS,
    interval_s: float = DEFAULT_INTERVAL_S,
    message_timeout_ms: int = MESSAGE_TIMEOUT_MS,
    clock: Clock = system_clock,
    rng: Random | None = None,
) -> Iterator[DeliveryCounter]:
    """Count delivery reports until the block ends. Flush the producers inside of the block.

    `topics`: where the program writes to; the audit knows of the others from their first counts on. `bootstrap`, or
    `client`, are the brokers of the cluster, to whose audit topic the counts go. `message_timeout_ms` is the producers'
    setting. Raises KafkaError, DeliveryError, NetworkError, DeadlineExceededError if the audit topic cannot be written,
    and ConfigurationError.
    """
    name = socket.gethostname() if host is None else host
    random = rng or SystemRandom()

    @asynccontextmanager
    async def open_counts(cluster: Cluster) -> AsyncIterator[RecordCounter]:
        times = LifeClock(clock, trio.current_time)
        instance = new_instance(name, times.started_ms, random)
        counter = ProducerCounter(
            datacenter, instance, window_ms, host=name, interval_ms=round(interval_s * 1000), clock=times
        )
        counter.oldest_window = lambda: (clock() - message_timeout_ms) // window_ms
        for topic in topics:
            counter.announce(topic)
        records = RecordCounter(counter, window_ms)
        async with open_life(cluster, records, interval_s, clock=clock, rng=random):
            yield records

    thread = _ReportingThread(_settings(bootstrap, client), open_counts)
    records = thread.start()
    try:
        yield DeliveryCounter(records, clock)
    finally:
        thread.stop()


class ConsumptionCounter:
    """Counts the records that a consumer returned and its group committed. Made by `count_consumption`.

    One consumer uses it. Each message is handed to `consumed` before the next call of `poll` or `commit`.
    """

    def __init__(self, records: RecordGroupCounter) -> None:
        self._records = records

    def consumed(self, message: ConsumedMessage) -> None:
        """Take note of what `poll` returned, or of one of the messages of `consume`. Counts once committed."""
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if message.error() is None and topic is not None and partition is not None and offset is not None:
            kind, timestamp_ms = message.timestamp()
            known_ms = NO_TIMESTAMP_MS if kind == NO_TIMESTAMP_KIND else timestamp_ms
            self._records.note(RecordOutcome(topic, partition, offset, known_ms))

    def on_commit(self, error: DeliveryFault | None, partitions: Sequence[PlacedOffset]) -> None:
        """Count what was committed: the setting `on_commit` of a consumer."""
        if error is None:
            self.committed(partitions)

    def committed(self, partitions: Sequence[PlacedOffset]) -> None:
        """Count what was committed: the answer of `commit(asynchronous=False)`, for which there is no callback."""
        self._records.committed(
            {
                TopicPartition(each.topic, each.partition): each.offset
                for each in partitions
                if each.error is None and each.offset >= 0
            }
        )

    def on_assign(self, _consumer: object, partitions: Sequence[PlacedOffset]) -> None:
        """Take note of partitions that the consumer got: the argument `on_assign` of `subscribe`."""
        self._records.assigned([TopicPartition(each.topic, each.partition) for each in partitions])


@contextmanager
def count_consumption(
    bootstrap: str = "",
    *,
    datacenter: str,
    group: str,
    client: ClientConfig | None = None,
    host: str | None = None,
    window_ms: int = DEFAULT_WINDOW_MS,
    interval_s: float = DEFAULT_INTERVAL_S,
    clock: Clock = system_clock,
    rng: Random | None = None,
) -> Iterator[ConsumptionCounter]:
    """Count what one consumer of a group commits, until the block ends. Close the consumer inside of the block.

    `bootstrap`, or `client`, are the brokers of the cluster that is consumed, to whose audit topic the counts go. An
    audit topic that cannot be written delays reports, never the consumer. Raises NetworkError and
    DeadlineExceededError if no broker answers, and ConfigurationError.
    """
    name = socket.gethostname() if host is None else host
    random = rng or SystemRandom()

    @asynccontextmanager
    async def open_counts(cluster: Cluster) -> AsyncIterator[RecordGroupCounter]:
        counter = GroupCounter(
            datacenter,
            group,
            instance=new_life(random),
            host=name,
            window_ms=window_ms,
            interval_ms=round(interval_s * 1000),
            clock=clock,
        )
        records = RecordGroupCounter(counter)
        async with reporting(records, cluster, interval_s=interval_s, clock=clock, rng=random):
            yield records

    thread = _ReportingThread(_settings(bootstrap, client), open_counts)
    records = thread.start()
    try:
        yield ConsumptionCounter(records)
    finally:
        thread.stop()


def _settings(bootstrap: str, client: ClientConfig | None) -> ClientConfig:
    if bool(bootstrap) == bool(client):
        raise ConfigurationError("bootstrap.servers", "give either `bootstrap`, or it in `client`")
    return client or ClientConfig(bootstrap=parse_addresses(bootstrap))


class _ReportingThread(Generic[_CountsT]):
    """The thread that reports the counts of a life. `open_counts` opens them, and reports them until its block ends."""

    def __init__(
        self, client: ClientConfig, open_counts: Callable[[Cluster], AbstractAsyncContextManager[_CountsT]]
    ) -> None:
        self._client = client
        self._open_counts = open_counts
        self._is_open = threading.Event()
        self._counts: _CountsT | None = None
        self._error: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._thread = threading.Thread(target=self._run, name="pipeline audit", daemon=True)

    def start(self) -> _CountsT:
        """Return the counts once they are open. Raises why they could not be."""
        self._thread.start()
        try:
            self._is_open.wait()
        except BaseException:  # Ctrl-C
            self.stop()
            raise
        if self._counts is None:
            assert self._error is not None
            raise self._error
        return self._counts

    def stop(self) -> None:
        """Report the rest, and end the thread."""
        with suppress(trio.RunFinishedError):
            if self._token is not None:
                self._token.run_sync_soon(self._scope.cancel)
        self._thread.join(_JOIN_S)

    async def _report(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with open_cluster(self._client) as cluster, self._open_counts(cluster) as counts:
                self._counts = counts
                self._is_open.set()
                await trio.sleep_forever()

    def _run(self) -> None:
        try:
            trio.run(self._report)
        except BaseException as failure:
            self._error = essential_error(failure)
            if self._counts is not None:
                logger.exception("audit_reporting_failed", error=repr(self._error))
        finally:
            self._is_open.set()
