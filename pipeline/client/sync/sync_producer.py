"""The producer for plain Python: the trio producer on a thread of its own, with functions that any thread may call.

`send` is the hot path: a lock, an append and, for the first record after a pause, a wake-up of the core. The core
thread accepts records in lists (`handover.py`), batches them and sends them as `Producer` does.

Invariants: records that a thread sends to a partition arrive in that order. Memory is bounded: by `buffer_memory` for
accepted records, and by `HANDOVER_BYTES` for those on their way to the core thread.
"""

import atexit
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from random import Random, SystemRandom
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import trio

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.cluster.discovery import Discovery, from_zookeeper
from pipeline.client.encoding.encoders import EncoderLike
from pipeline.client.producer.batches import DeliveryCallback, RecordMetadata
from pipeline.client.producer.interceptors import ProducerInterceptor
from pipeline.client.producer.partitioner import Partitioner
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.client.producer.record import UndeliveredRecord
from pipeline.client.sync.acceptance import SyncCore
from pipeline.client.sync.core_thread import CoreThread, ProducerThreadError
from pipeline.client.sync.deliveries import ResultTimeoutError, SentColumns, SentRecord, SentRecords
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.coordination.zookeeper_security import OPEN_ZOOKEEPER, ZooKeeperSecurity
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.model import Clock, HostPort
from pipeline.records.builder import Header
from pipeline.settings import parse_addresses

if TYPE_CHECKING:
    import pyarrow as pa

logger = get_logger(__name__)

HANDOVER_BYTES = 8 * 1024 * 1024
RECORD_OVERHEAD_BYTES = 512
"""About what Python takes for a record on its way to the core thread, beside key and value."""
EXIT_TIMEOUT_S = 10.0
"""Time that a program which ends without `close` waits for its last records."""
_GRACE_S = 5.0
"""Time for the core thread to notice a deadline, on a busy machine."""


def system_clock() -> int:
    """Return the time in ms since 1970."""
    return time.time_ns() // 1_000_000


class SyncProducer:
    """Sends records. Any number of threads may share it. Close it, or use it in a `with` block."""

    def __init__(
        self,
        bootstrap: str | Sequence[HostPort] = (),
        config: ProducerConfig | None = None,
        *,
        client: ClientConfig | None = None,
        zookeeper: str = "",
        zookeeper_security: ZooKeeperSecurity = OPEN_ZOOKEEPER,
        key_encoder: EncoderLike | None = None,
        value_encoder: EncoderLike | None = None,
        partitioner: Partitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        clock: Clock = system_clock,
        rng: Random | None = None,
        open_with: Callable[..., AbstractAsyncContextManager[Producer]] = open_producer,
    ) -> None:
        """Open a producer for the brokers at `bootstrap` (`host:port,...`), or those of `client`; with `zookeeper`
        (`host:port,.../chroot`) for those that are registered there, and watch for changes (see `from_zookeeper`).

        Connects to brokers when first used, to ZooKeeper at once: raises CoordinationUnavailableError if no server
        answers within 30 s. Everything else is as in `open_producer`: encoders, partitioner, interceptors and
        callbacks run on the producer's thread. `open_with` is called instead of `open_producer`, with its arguments:
        `audited(datacenter=...)` of `pipeline.audit.counting.lives` has the audit count the records; opening then
        waits for brokers, and raises what it raises. Raises ConfigurationError.
        """
        addresses = parse_addresses(bootstrap) if isinstance(bootstrap, str) else tuple(bootstrap)
        settings = client or ClientConfig(bootstrap=addresses)
        if (addresses and client is not None) or bool(settings.bootstrap) == bool(zookeeper):
            raise ConfigurationError("bootstrap.servers", "give either `bootstrap`, or it in `client`, or `zookeeper`")
        config = config or ProducerConfig()
        self._max_block_s = config.max_block_ms / 1000
        self._clock = clock
        self._is_closed = False

        @asynccontextmanager
        async def open_core() -> AsyncIterator[SyncCore]:
            async with AsyncExitStack() as stack:
                discover: Discovery | None = None
                if zookeeper:
                    discover = from_zookeeper(
                        await stack.enter_async_context(open_zookeeper(zookeeper, security=zookeeper_security)),
                        settings.security.protocol,
                    )
                cluster = await stack.enter_async_context(open_cluster(settings, discover=discover))
                async with open_with(
                    cluster,
                    config,
                    clock=clock,
                    rng=rng or SystemRandom(),
                    key_encoder=key_encoder,
                    value_encoder=value_encoder,
                    partitioner=partitioner,
                    interceptors=interceptors,
                ) as producer:
                    yield SyncCore(cluster, producer)

        self._core = CoreThread(open_core, min(config.buffer_memory, HANDOVER_BYTES), self._max_block_s)
        atexit.register(self._close_at_exit)

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
        callback: DeliveryCallback | None = None,
    ) -> SentRecord:
        """Hand a record over, to be sent in the background, and return at once. Its outcome is `result()`.

        Waits only if the memory is full, at most `max_block_ms`; raises DeadlineExceededError then. Raises
        PipelineError after `close` and in a forked process, ProducerThreadError if the core has failed.

        Why the producer did not accept a record (no such topic, too large, not encodable) is raised by `result` and
        given to `callback`, which is called on the producer's thread and must not take long.
        """
        if timestamp_ms is None:
            timestamp_ms = self._clock()
        size = RECORD_OVERHEAD_BYTES + _length(value)
        if key is not None:
            size += _length(key)
        sent = SentRecord(self._core, (topic, value, key, partition, timestamp_ms, headers, callback), size)
        self._core.handover.put(sent, size, self._max_block_s)
        return sent

    def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        key: Any = None,
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> SentRecords:
        """Hand many records of a topic over, with one key or with a key of `keys` for each. Faster than many calls.

        Everything else is as with `send`; `result()` is the list of places. If the producer refuses one of the records,
        `result` raises PartlyAcceptedError or the reason, and the records from there on are not sent.
        """
        values = list(values)
        keys = None if keys is None else list(keys)
        if keys is not None and len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys for {len(values)} values")
        size = RECORD_OVERHEAD_BYTES + sum(map(_length, values)) + _length(key) + sum(map(_length, keys or ()))
        sent = SentRecords(self._core, (topic, values, key, keys, partition, timestamp_ms, headers), size)
        self._core.handover.put(sent, size, self._max_block_s)
        return sent

    def send_columns(self, topic: str, table: "pa.Table | pa.RecordBatch") -> SentColumns:
        """Hand the rows of an Arrow table over (see `Producer.send_columns`). Everything else is as with `send`.

        `result()` is a record batch: partition and offset of each row. It raises why the table was not accepted
        (TypeError, ValueError, KafkaError; no row is sent), ColumnsNotAcceptedError, or the first DeliveryError.
        """
        sent = SentColumns(self._core, (topic, table), RECORD_OVERHEAD_BYTES + _table_bytes(table))
        self._core.handover.put(sent, sent.size_bytes, self._max_block_s)
        return sent

    def send_and_wait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> RecordMetadata:
        """Send a record without lingering, after all of its topic that were sent before, wait until it is acknowledged,
        and return where it is. Raises as `send` and `SentRecord.result`. An interrupted call may have sent the record.
        """
        self._require_open()

        async def send(producer: Producer, deadline: float) -> RecordMetadata:
            await self._core.acceptance.answered(deadline, topic)
            return await producer.send_and_wait(topic, value, key, partition, timestamp_ms, headers)

        return self._core.call(send, None)

    def flush(self, timeout: float | None = None) -> list[UndeliveredRecord]:
        """Send all that was sent before, and wait for the outcomes, at most for the delivery timeout, or `timeout` s.

        With `timeout`, returns the records that are not delivered: those that were given up or refused since the last
        report, each once, and those that are still being sent (without `error`). Raises ResultTimeoutError if a
        callback or an encoder keeps the producer's thread busy beyond that. Without, raises the first error since the
        last flush; the records stay in the report of the next call with `timeout`.
        """
        self._require_open()

        async def flush(producer: Producer, deadline: float) -> list[UndeliveredRecord]:
            acceptance = self._core.acceptance
            await acceptance.answered(deadline)
            if timeout is None:
                await producer.flush()
                refusal = acceptance.take_first_refusal()
                if refusal is not None:
                    raise refusal
                return []
            late = [(sent, sent.undelivered()) for sent in acceptance.unanswered()]
            undelivered = await producer.flush(_left_s(deadline))
            acceptance.take_first_refusal()
            waiting = [record for sent, records in late if sent.error is None for record in records]
            self._core.keep_report([record for record in undelivered if record.error is not None])
            return [*(record for record in undelivered if record.error is None), *waiting]

        pending = self._core.call(flush, timeout, _GRACE_S)
        return [] if timeout is None else [*self._core.take_report(), *pending]

    def close(self, timeout: float | None = None) -> list[UndeliveredRecord]:
        """Refuse further records, and wait for those sent before, at most for the delivery timeout, or `timeout` s.

        Returns the records that were not delivered and that no call reported, each once: those that were given up or
        refused, and those that this call gives up. Closing twice does nothing. Raises ResultTimeoutError if a callback
        or an encoder keeps the producer's thread busy beyond that. A call that is interrupted or raises may be
        repeated.
        """
        self._core.require_other_thread()
        if not self._is_closed:
            self._core.handover.refuse(PipelineError("the producer is closed"))

            async def close(producer: Producer, deadline: float) -> None:
                await self._core.acceptance.answered(deadline)
                self._core.keep_report(await producer.aclose(None if timeout is None else _left_s(deadline)))

            try:
                self._core.call(close, timeout, _GRACE_S)
            except ResultTimeoutError:
                raise
            except ProducerThreadError as error:  # what the core has not accepted is reported still
                logger.warning("producer_closed_after_failure", error=str(error))
            except PipelineError as error:  # another thread closes it, too
                logger.debug("producer_closed_already", error=str(error))
            self._core.stop()
            self._is_closed = True
            atexit.unregister(self._close_at_exit)
        return self._core.take_report()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush, and raise the first error; after an exception in the block give up what is not delivered."""
        if self._is_closed:
            return
        try:
            if kind is None:
                self.flush()
        finally:
            self.close(0)

    def _require_open(self) -> None:
        self._core.handover.require_same_process()
        if self._is_closed:
            raise PipelineError("the producer is closed")

    def _close_at_exit(self) -> None:
        """Deliver the last records of a program that ends without `close`."""
        try:
            self._core.handover.require_same_process()
        except PipelineError:  # a forked process: the records are its parent's
            return
        try:
            undelivered = self.close(EXIT_TIMEOUT_S)
        except PipelineError as error:
            logger.exception("producer_not_closed_at_exit", error=str(error))
            return
        if undelivered:
            logger.error("records_not_delivered_at_exit", records=len(undelivered))


def _length(data: Any) -> int:
    return len(data) if isinstance(data, (bytes, bytearray, str, memoryview)) else 0


def _table_bytes(table: Any) -> int:
    size = getattr(table, "nbytes", 0)
    return size if isinstance(size, int) else 0


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - trio.current_time())
