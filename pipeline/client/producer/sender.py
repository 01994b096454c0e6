"""The shell around the accumulator: sends due batches, settles answered ones, wakes tasks that wait for memory.

One request at a time is on its way for a partition, and up to `max_in_flight` for a broker. So the order of a partition
holds through all retries, with and without idempotence.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random

import trio

from pipeline.client.cluster.backoff import backoff_ms
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.config import Acks, ProducerConfig
from pipeline.client.producer.accumulator import Accumulator
from pipeline.client.producer.batches import (
    DeliveredBatch,
    DeliveryError,
    FailedBatch,
    ProducerBatch,
    ProducerIdentity,
    ProducerObserver,
)
from pipeline.client.producer.produce_plan import ProduceVerdict, produce_answers, produce_request, verdict_of
from pipeline.client.producer.undelivered import UndeliveredBatches
from pipeline.diagnostics import get_logger
from pipeline.errors import NetworkError, PipelineError, ProtocolError
from pipeline.model import BrokerId
from pipeline.net.signals import Wakeup
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pipeline.protocol.messages.produce import PartitionProduceResponse, ProduceResponse

logger = get_logger(__name__)

JITTER = 0.2
TRANSACTION_TIMEOUT_MS = 60_000


def now_ms() -> int:
    """Return the time of all deadlines of a producer: trio's clock in ms, which never jumps."""
    return round(trio.current_time() * 1000)


class Sender:
    """Sends the batches of an accumulator until cancelled."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        config: ProducerConfig,
        rng: Random,
        on_delivered: Callable[[DeliveredBatch], None] | None,
        observer: ProducerObserver | None = None,
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._config = config
        self._rng = rng
        self._on_delivered = on_delivered
        self._observer = observer
        self._begun_topics: set[str] = set()
        self._beginning: set[str] = set()
        self._reopening = False
        self._in_flight: Counter[BrokerId] = Counter()
        self._wake = Wakeup()
        self._freed = trio.lowlevel.ParkingLot()
        self._identifying = False
        self._obstacle: Exception | None = None
        self.first_failure: DeliveryError | None = None
        self.undelivered = UndeliveredBatches(config.buffer_memory)

    def wake(self) -> None:
        """Check for due batches again."""
        self._wake.set()

    async def wait_for_memory(self) -> None:
        """Wait until memory of the accumulator is freed; meanwhile no batch lingers."""
        self._wake.set()
        await self._freed.park()

    async def run(self) -> None:
        """Send batches for ever."""
        async with trio.open_nursery() as nursery:
            while True:
                self._wake.clear()
                self._expire()
                wake_ms = self._send_due(nursery)
                with trio.move_on_at(math.inf if wake_ms is None else wake_ms / 1000):
                    await self._wake.wait()

    def abandon_all(self) -> None:
        """Give up all batches, so that no task waits for them."""
        given_up = []
        for batch in self._accumulator.incomplete():
            batch.last_error = batch.last_error or PipelineError("the producer was closed")
            batch.outcome_unknown = batch.outcome_unknown or batch.attempts > 0
            given_up.append((batch, self._accumulator.fail(batch, now_ms())))
        for batch, error in given_up:  # a callback may close the producer, and finds nothing left
            self._tell_failure(batch, error)

    def _expire(self) -> None:
        for batch, error in self._accumulator.expire(now_ms(), self._obstacle):
            self._tell_failure(batch, error)

    def _send_due(self, nursery: trio.Nursery) -> int | None:
        """Start the due requests, and return when to check again (trio's clock, ms)."""
        now = now_ms()
        view = self._cluster.view
        drained = self._accumulator.drain(
            view.leader_of,
            lambda broker: self._in_flight[broker] < self._config.max_in_flight,
            now,
            pressed=len(self._freed) > 0,
            begun_topics=None if self._observer is None else self._begun_topics,
            first_open_window=None if self._observer is None else self._observer.first_open_window(),
        )
        for leader, batches in drained.requests.items():
            self._in_flight[leader] += 1
            nursery.start_soon(self._send, leader, batches)
        for topic in drained.new_topics - self._beginning:
            self._beginning.add(topic)
            nursery.start_soon(self._begin_topic, topic)
        if drained.is_window_closed and not self._reopening:
            self._reopening = True
            nursery.start_soon(self._reopen)
        if drained.identity_missing and not self._identifying:
            self._identifying = True
            nursery.start_soon(self._identify)
        if drained.leader_missing:
            self._obstacle = NetworkError("the leader of the partition is unknown or not registered")
            self._cluster.refresh_soon()
            drained.wake_at(now + self._cluster.config.retry_backoff_ms)
        return drained.wake_ms

    async def _send(self, leader: BrokerId, batches: Sequence[ProducerBatch]) -> None:
        """Send one request. All its batches are settled before it ends, whatever happens."""
        try:
            now = now_ms()
            oldest_ms = min(batch.created_ms for batch in batches)
            deadline_ms = min(now + self._config.request_timeout_ms, oldest_ms + self._config.delivery_timeout_ms)
            ids = self._cluster.view.topic_ids(batch.topic_partition.topic for batch in batches)
            request = produce_request(
                {batch.topic_partition: batch.data for batch in batches if batch.data is not None},
                ids,
                acks=self._config.acks,
                timeout_ms=self._config.request_timeout_ms,
            )
            response: ProduceResponse | None = await self._cluster.request(
                leader, request, timeout_s=max(deadline_ms - now, 1) / 1000
            )
            if response is None or self._config.acks is Acks.NONE:
                answers = {batch.topic_partition: PartitionProduceResponse() for batch in batches}
            else:
                answers = dict(produce_answers(response, ids))
            for batch in _undecided(batches):
                self._settle(batch, answers.get(batch.topic_partition))
        except UNREACHABLE as error:
            self._cluster.refresh_soon()
            for batch in _undecided(batches):
                self._retry(batch, error, outcome_unknown=True)
        except PipelineError as error:
            for batch in _undecided(batches):
                self._fail(batch, error)
        finally:
            self._in_flight[leader] -= 1
            self.wake()

    def _settle(self, batch: ProducerBatch, answer: PartitionProduceResponse | None) -> None:
        if answer is None:
            self._retry(batch, ProtocolError("the response leaves the partition out"), outcome_unknown=True)
            return
        code = ErrorCode.of(answer.error_code)
        error = KafkaError(code, answer.error_message)
        match verdict_of(code):
            case ProduceVerdict.DELIVERED:
                self._deliver(batch, answer)
            case ProduceVerdict.RETRY:
                self._cluster.refresh_soon()  # a leader without followers may have been deposed without knowing
                self._retry(batch, error, outcome_unknown=True)
            case ProduceVerdict.LEADER_MOVED:
                self._cluster.refresh_soon()
                self._retry(batch, error, outcome_unknown=True)  # a leader that resigns may have appended the batch
            case ProduceVerdict.IDENTITY_REFUSED:
                logger.warning("producer_id_refused", partition=str(batch.topic_partition), error=str(error))
                if batch.outcome_unknown and code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    self._fail(batch, error)  # a broker that forgot the producer would append the batch twice
                    return
                self._accumulator.renew_identity(batch)
                self._retry(batch, error, outcome_unknown=False)
            case ProduceVerdict.FATAL:
                self._fail(batch, error, outcome_unknown=code is ErrorCode.UNKNOWN_SERVER_ERROR)

    def _retry(self, batch: ProducerBatch, error: Exception, *, outcome_unknown: bool) -> None:
        if batch.attempts > self._config.retries:
            self._fail(batch, error, outcome_unknown=outcome_unknown)
            return
        settings = self._cluster.config
        delay_ms = backoff_ms(batch.attempts, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        delay_ms = int(delay_ms * self._rng.uniform(1 - JITTER, 1 + JITTER))
        self._accumulator.retry(batch, error, now_ms() + delay_ms, outcome_unknown=outcome_unknown)

    def _fail(self, batch: ProducerBatch, error: Exception, *, outcome_unknown: bool = False) -> None:
        batch.last_error = error
        batch.outcome_unknown = batch.outcome_unknown or outcome_unknown
        self._tell_failure(batch, self._accumulator.fail(batch, now_ms()))

    def _deliver(self, batch: ProducerBatch, answer: PartitionProduceResponse) -> None:
        header = batch.delivered(answer.base_offset, answer.log_append_time_ms)
        self._accumulator.complete(batch)
        if self._on_delivered is not None:
            try:
                self._on_delivered(
                    DeliveredBatch(topic_partition=batch.topic_partition, header=header, size_bytes=header.size_bytes)
                )
            except Exception:  # a listener's fault must not stop delivery
                logger.exception("delivery_listener_failed", partition=str(batch.topic_partition))
        self._tell(batch)

    def _tell_failure(self, batch: ProducerBatch, error: DeliveryError) -> None:
        logger.error("delivery_failed", partition=str(batch.topic_partition), error=str(error))
        self.first_failure = self.first_failure or error
        self.undelivered.keep(batch)
        if self._observer is not None:
            self._observer.failed(
                FailedBatch(
                    topic_partition=batch.topic_partition,
                    record_count=batch.record_count,
                    window=batch.window,
                    outcome_unknown=batch.outcome_unknown,
                )
            )
        self._tell(batch)

    def _tell(self, batch: ProducerBatch) -> None:
        for raised in batch.tell():
            logger.error("delivery_callback_failed", partition=str(batch.topic_partition), exc_info=raised)
        self._freed.unpark_all()

    async def _begin_topic(self, topic: str) -> None:
        assert self._observer is not None
        await self._observer.begin_topic(topic)
        self._begun_topics.add(topic)
        self.wake()

    async def _reopen(self) -> None:
        assert self._observer is not None
        await self._observer.reopen()
        self._reopening = False
        self.wake()

    async def _identify(self) -> None:
        """Request a producer id (KIP-98). A refusal is retried, and is the reason given if batches expire."""
        failures = 0
        self._obstacle = NetworkError("no broker has given the producer an id yet")
        while self._accumulator.identity is None:
            try:
                response: InitProducerIdResponse = await self._cluster.request_any(
                    InitProducerIdRequest(
                        transactional_id=None,
                        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                        is_counted=self._config.is_counted,
                    )
                )
                if response.error_code != ErrorCode.NONE:
                    raise KafkaError(response.error_code, "InitProducerId")
                self._accumulator.identity = ProducerIdentity(response.producer_id, response.producer_epoch)
            except PipelineError as error:
                failures += 1
                self._obstacle = error
                logger.warning("producer_id_unavailable", error=str(error))
                await self._cluster.back_off(failures, math.inf)
        self._identifying = False
        self.wake()


def _undecided(batches: Sequence[ProducerBatch]) -> Iterator[ProducerBatch]:
    """Yield batches without outcome. Lazy, since a callback of the batch before may give up the next one."""
    return (batch for batch in batches if not batch.outcome.is_over)
