"""Counts for the audit what producers of confluent-kafka publish, by their delivery reports.

    with count_deliveries("east-1:9092", datacenter="east", topics=["clicks"]) as counted:
        producer = Producer({"bootstrap.servers": "east-1:9092", "on_delivery": counted.on_delivery})
        producer.produce("clicks", b"/home")
        producer.flush()

A thread of its own reports the counts, through this package's client; confluent-kafka itself is not imported.
"""

import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random, SystemRandom
from typing import Any, Final, Protocol

import trio

from pipeline.audit.counting.lives import END_TIMEOUT_S, new_instance, open_life
from pipeline.audit.counting.producer_counter import LifeClock, ProducerCounter
from pipeline.audit.counting.publisher import DEFAULT_INTERVAL_S
from pipeline.audit.counting.record_counter import RecordCounter, RecordOutcome
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.sync.sync_producer import system_clock
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError
from pipeline.model import Clock
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

_JOIN_S: Final = END_TIMEOUT_S + 5.0

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
            self._records.delivered(outcome)
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
    if bool(bootstrap) == bool(client):
        raise ConfigurationError("bootstrap.servers", "give either `bootstrap`, or it in `client`")
    settings = client or ClientConfig(bootstrap=parse_addresses(bootstrap))
    reporting = _Reporting(settings, interval_s, clock, rng or SystemRandom())
    name = socket.gethostname() if host is None else host

    def open_counter(times: LifeClock, instance: str) -> RecordCounter:
        counter = ProducerCounter(
            datacenter, instance, window_ms, host=name, interval_ms=round(interval_s * 1000), clock=times
        )
        counter.oldest_window = lambda: (clock() - message_timeout_ms) // window_ms
        for topic in topics:
            counter.announce(topic)
        return RecordCounter(counter, window_ms)

    records = reporting.start(open_counter, name)
    try:
        yield DeliveryCounter(records, clock)
    finally:
        reporting.stop()


class _Reporting:
    """The thread that reports the counts of a life."""

    def __init__(self, client: ClientConfig, interval_s: float, clock: Clock, rng: Random) -> None:
        self._client = client
        self._interval_s = interval_s
        self._clock = clock
        self._rng = rng
        self._is_open = threading.Event()
        self._records: RecordCounter | None = None
        self._error: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._thread: threading.Thread | None = None

    def start(self, open_counter: Callable[[LifeClock, str], RecordCounter], host: str) -> RecordCounter:
        """Return the counter once its life is registered. Raises why it could not be."""

        async def main() -> None:
            self._token = trio.lowlevel.current_trio_token()
            times = LifeClock(self._clock, trio.current_time)
            records = open_counter(times, new_instance(host, times.started_ms, self._rng))
            with self._scope:
                async with (
                    open_cluster(self._client) as cluster,
                    open_life(cluster, records, self._interval_s, clock=self._clock, rng=self._rng),
                ):
                    self._records = records
                    self._is_open.set()
                    await trio.sleep_forever()

        self._thread = threading.Thread(target=self._run, args=(main,), name="pipeline audit", daemon=True)
        self._thread.start()
        try:
            self._is_open.wait()
        except BaseException:  # Ctrl-C
            self.stop()
            raise
        if self._records is None:
            assert self._error is not None
            raise self._error
        return self._records

    def stop(self) -> None:
        """Report the rest, and end the thread."""
        with suppress(trio.RunFinishedError):
            if self._token is not None:
                self._token.run_sync_soon(self._scope.cancel)
        assert self._thread is not None
        self._thread.join(_JOIN_S)

    def _run(self, main: Callable[[], Awaitable[None]]) -> None:
        try:
            trio.run(main)
        except BaseException as failure:
            self._error = essential_error(failure)
            if self._records is not None:
                logger.exception("audit_reporting_failed", error=repr(self._error))
        finally:
            self._is_open.set()
