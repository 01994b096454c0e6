"""Producers that report their own batches to the audit (paper section 4), from the registration to the end of a life.

Invariants:
A. No record is sent before the audit topic has the first life sign, nor before it has a report that names the record's
   topic. So a producer that is killed before it has reported its counts is known to have written to the topic.
B. Counts that were not reported die only with the process. A report that fails is repeated; the end of the block
   reports the rest, also after an error or a cancellation, for at most `END_TIMEOUT_S`.
C. The audit may delay a producer: while it opens, and for `ANNOUNCE_TIMEOUT_S` at the first record of a topic. After
   that records are sent, whether the audit topic can be written or not.
"""

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final
from uuid import UUID, uuid5

import trio

from pipeline.audit.counting.producer_counter import LifeClock, ProducerCounter
from pipeline.audit.counting.publisher import DEFAULT_INTERVAL_S, CountPublisher, LifeCounting, open_publisher
from pipeline.audit.events.tiers import is_audited
from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.encoding.encoders import EncoderLike
from pipeline.client.producer.batches import DeliveredBatch, FailedBatch, ProducerIdentity
from pipeline.client.producer.interceptors import ProducerInterceptor
from pipeline.client.producer.partitioner import Partitioner
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.diagnostics import get_logger
from pipeline.errors import DeadlineExceededError
from pipeline.model import Clock
from pipeline.records.tally import DEFAULT_WINDOW_MS

HOST_HEADER: Final = "audit.host"
"""Record header with the host that created the record (paper section 4)."""

REGISTER_TIMEOUT_S: Final = 60.0
ANNOUNCE_TIMEOUT_S: Final = 10.0
REOPEN_BACKOFF_S: Final = 0.2
END_TIMEOUT_S: Final = 10.0

logger = get_logger(__name__)


@asynccontextmanager
async def open_audited_producer(
    cluster: Cluster,
    config: ProducerConfig,
    *,
    datacenter: str,
    host: str,
    clock: Clock,
    rng: Random,
    window_ms: int = DEFAULT_WINDOW_MS,
    interval_s: float = DEFAULT_INTERVAL_S,
    on_delivered: Callable[[DeliveredBatch], None] | None = None,
    identity: ProducerIdentity | None = None,
    key_encoder: EncoderLike | None = None,
    value_encoder: EncoderLike | None = None,
    partitioner: Partitioner | None = None,
    interceptors: Sequence[ProducerInterceptor] = (),
) -> AsyncIterator[Producer]:
    """Open a producer whose records bear their host, and that reports acknowledged batches (paper section 4).

    All but the audit's own arguments are those of `open_producer`. Raises KafkaError, DeliveryError, NetworkError or
    DeadlineExceededError if the audit topic cannot be written: nothing was sent then. Later reports that fail are
    logged and repeated. Reports go through a second producer, so that neither fails with the other.

    A producer that is killed leaves up to `interval_s` unreported, and the audit says that it ended without closing
    its window.
    """
    times = LifeClock(clock, trio.current_time)
    instance = new_instance(host, times.started_ms, rng)
    counter = ProducerCounter(
        datacenter, instance, window_ms, host=host, interval_ms=round(interval_s * 1000), clock=times
    )
    config = replace(
        config,
        window_ms=window_ms,
        is_counted=config.idempotence,
        record_headers=(*config.record_headers, (HOST_HEADER, host.encode())),
    )

    def delivered(batch: DeliveredBatch) -> None:
        counter.delivered(batch)
        if counter.is_resting:  # silence is soon noticed again
            publisher.wake()
        if on_delivered is not None:
            on_delivered(batch)

    async with (
        open_life(cluster, counter, interval_s, clock=clock, rng=rng) as publisher,
        open_producer(
            cluster,
            config,
            clock=clock,
            rng=rng,
            on_delivered=delivered,
            identity=identity,
            key_encoder=key_encoder,
            value_encoder=value_encoder,
            partitioner=partitioner,
            interceptors=interceptors,
            observer=_LifeObserver(counter, publisher),
        ) as producer,
    ):
        counter.oldest_window = lambda: producer.oldest_window
        counter.is_waiting = lambda: producer.oldest_window is not None
        yield producer


def audited(
    *,
    datacenter: str,
    host: str | None = None,
    window_ms: int = DEFAULT_WINDOW_MS,
    interval_s: float = DEFAULT_INTERVAL_S,
) -> Callable[..., AbstractAsyncContextManager[Producer]]:
    """Return `open_audited_producer` with these arguments, for `SyncProducer(..., open_with=audited(...))`.

    `host` is the name of this host unless given.
    """
    return partial(
        open_audited_producer,
        datacenter=datacenter,
        host=socket.gethostname() if host is None else host,
        window_ms=window_ms,
        interval_s=interval_s,
    )


def new_instance(host: str, started_ms: int, rng: Random) -> str:
    """Return the id of a life. Programs whose random numbers are equal differ by host or start."""
    return str(uuid5(UUID(int=rng.getrandbits(128), version=4), f"{host}/{started_ms}"))


@asynccontextmanager
async def open_life(
    cluster: Cluster, counter: LifeCounting, interval_s: float, *, clock: Clock, rng: Random
) -> AsyncIterator[CountPublisher]:
    """Register a life, and report its counts until the block ends: each `interval_s`, seldom when idle, and at the end.

    Raises what publishing raises, and DeadlineExceededError, if the life cannot be registered.
    """
    async with open_publisher(cluster, counter, clock=clock, rng=rng) as publisher:
        try:
            with trio.move_on_after(REGISTER_TIMEOUT_S) as scope:
                await publisher.publish_or_raise()
            if scope.cancelled_caught:
                raise DeadlineExceededError(f"the audit topic took no life sign within {REGISTER_TIMEOUT_S} s")
            async with background_tasks() as nursery:
                nursery.start_soon(publisher.run, interval_s, counter.may_rest)
                yield publisher
        finally:
            counter.end()  # also of a life whose registration failed or was cancelled: brokers may have the sign
            is_ended = False
            with trio.move_on_after(END_TIMEOUT_S, shield=True):
                is_ended = await publisher.publish()
            if not is_ended:
                logger.error("audit_life_not_ended", help="the audit will say that the producer ended unexpectedly")


class _LifeObserver:
    """Announces topics and late records to the audit, and counts failures."""

    def __init__(self, counter: ProducerCounter, publisher: CountPublisher) -> None:
        self._counter = counter
        self._publisher = publisher

    async def begin_topic(self, topic: str) -> None:
        """Return once the audit knows that the producer writes to the topic, or after `ANNOUNCE_TIMEOUT_S`."""
        if not is_audited(topic):
            return
        self._counter.announce(topic)
        with trio.move_on_after(ANNOUNCE_TIMEOUT_S):
            await self._publisher.publish(unless=partial(self._counter.is_announced, topic))
        if not self._counter.is_announced(topic):
            logger.error(
                "audit_topic_not_announced", topic=topic, help="records are sent all the same; check the audit topic"
            )

    def first_open_window(self) -> int | None:
        """Return the lowest window that the audit does not take for closed; None if that is not known."""
        return self._counter.first_open_window

    async def reopen(self) -> None:
        """Return once the audit knows which windows have records again, or after `ANNOUNCE_TIMEOUT_S`.

        Until the next report that is published, further late records do not wait after a timeout.
        """
        with trio.move_on_after(ANNOUNCE_TIMEOUT_S):
            while True:
                if await self._publisher.publish():
                    return
                await trio.sleep(REOPEN_BACKOFF_S)
        self._counter.forget_closed()
        logger.error("audit_window_not_reopened", help="late records are sent all the same; check the audit topic")

    def failed(self, batch: FailedBatch) -> None:
        """Count a batch that was given up."""
        self._counter.failed(batch)
