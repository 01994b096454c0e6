"""The producer: records in, batches out, one delivery for each record.

`send` is the hot path: it appends to a batch in memory, and is a checkpoint only if it begins a batch, after
`FAIR_SHARE_RECORDS`, for a new topic, and if the memory is full. `sender.py` sends.

Invariants: `send` waits only before it accepts the record, so a cancelled `send` sends nothing. Records that a task
sends to a partition arrive in that order. With idempotence (the default) each record is written exactly once, unless
its delivery fails.
"""

import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import repeat
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.encoding.encoders import EncoderLike
from pipeline.client.producer.accumulator import MAX_RECORD_OVERHEAD, Accumulator, headers_charge, record_charge
from pipeline.client.producer.batches import (
    DeliveredBatch,
    DeliveryCallback,
    ProducerBatch,
    ProducerIdentity,
    ProducerObserver,
    RecordMetadata,
)
from pipeline.client.producer.column_sender import ColumnSender
from pipeline.client.producer.delivery import Deliveries, Delivery, PartlyAcceptedError
from pipeline.client.producer.interceptors import ProducerInterceptor
from pipeline.client.producer.partitioner import Partitioner, murmur2, next_sticky_partition, partition_for_key
from pipeline.client.producer.preparation import Preparation, preparation_of
from pipeline.client.producer.record import ProducerRecord, UndeliveredRecord
from pipeline.client.producer.routes import TopicRoute, require_partition, require_partitioner
from pipeline.client.producer.sender import Sender, now_ms
from pipeline.client.producer.undelivered import undelivered_records
from pipeline.errors import DeadlineExceededError, PipelineError
from pipeline.model import Clock
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import HEADER_SIZE
from pipeline.records.builder import BatchBuilder, Header

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.client.producer.columns import ColumnsDelivery

FAIR_SHARE_RECORDS = 256


class Producer:
    """Sends records. Made by `open_producer`; all tasks of one trio run may share it."""

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        accumulator: Accumulator,
        sender: Sender,
        clock: Clock,
        rng: Random,
        *,
        preparation: Preparation | None = None,
        partitioner: Partitioner | None = None,
    ) -> None:
        self._cluster = cluster
        self.config = config
        self._accumulator = accumulator
        self._sender = sender
        self._clock = clock
        self._rng = rng
        self._preparation = preparation
        self._partitioner = partitioner
        self._routes: dict[str, TopicRoute] = {}
        self._memory_turn = trio.StrictFIFOLock()
        self._memory_waiters = 0
        self._room_bytes = config.buffer_memory - HEADER_SIZE
        self._max_charge = min(config.buffer_memory, config.max_request_size) - HEADER_SIZE
        self._unshared_records = 0
        self._closed = False
        self._columns = ColumnSender(
            config,
            accumulator,
            sender,
            clock,
            rng,
            self._max_charge,
            find=lambda name: self._route(name, self._block_deadline()),
            find_grown=self._grown_route,
            take_turn=self._wait_for_turn,
        )

    @property
    def oldest_window(self) -> int | None:
        """Lowest number of a window (see `ProducerConfig.window_ms`) with records that have no outcome yet."""
        return self._accumulator.oldest_window()

    @property
    def identity(self) -> ProducerIdentity | None:
        """Producer id and epoch; None if it has none yet, or none that it may use again."""
        return self._accumulator.identity

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
        callback: DeliveryCallback | None = None,
        *,
        key_encoder: EncoderLike | None = None,
        value_encoder: EncoderLike | None = None,
    ) -> Coroutine[Any, Any, Delivery]:
        """Accept a record, to be sent in the background. Waits only for metadata of a new topic and for memory.

        Key and value are bytes or None, unless there are encoders: the producer's, or those of this call. Without
        `partition` and a partitioner, equal keys go to one partition, as with Java clients; without a key the partition
        changes every `batch_size` bytes. `callback` is called when the outcome is known, and must not take long.

        A call that raises or is cancelled sends nothing. Raises KafkaError (no such topic or partition, record too
        large), SerializationError, and DeadlineExceededError if the memory stays full for `max_block_ms`, since the
        brokers are slower than the program.
        """
        if self._preparation is None and key_encoder is None and value_encoder is None:
            return self._accept(topic, value, key, partition, timestamp_ms, headers, callback)
        record = ProducerRecord(
            topic=topic, value=value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=tuple(headers)
        )
        preparation = self._preparation or Preparation()
        return preparation.send(record, callback, self._accept, key_encoder, value_encoder)

    async def send_and_wait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> RecordMetadata:
        """Send a record without lingering, wait until it is acknowledged, and return where it is.

        Raises as `send`, and DeliveryError. A call that is cancelled may have sent the record.
        """
        delivery = await self.send(topic, value, key, partition, timestamp_ms, headers)
        delivery.hurry()
        self._sender.wake()
        return await delivery.wait()

    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        key: Any = None,
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> Deliveries:
        """Accept many records of a topic, with one key or with a key of `keys` for each. Faster than many calls.

        Everything else is as with `send`. A call that raises has sent nothing, unless it raises PartlyAcceptedError,
        which has the deliveries of the first records. A call that is cancelled may have sent the first records.
        """
        values = list(values)
        if keys is not None and len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys for {len(values)} values")
        deliveries = Deliveries()
        try:
            if keys is None and self._preparation is None and self._partitioner is None:
                await self._accept_many(topic, values, key, partition, timestamp_ms, headers, deliveries)
            else:
                for value, its_key in zip(values, repeat(key) if keys is None else keys, strict=False):
                    deliveries.add_one(await self.send(topic, value, its_key, partition, timestamp_ms, headers))
        except Exception as error:
            if not len(deliveries):
                raise
            raise PartlyAcceptedError(deliveries, error) from error
        return deliveries

    async def send_columns(self, topic: str, table: "pa.Table | pa.RecordBatch") -> "ColumnsDelivery":
        """Accept the rows of an Arrow table, to be sent in the background. Waits as `send`, and while rows are encoded.

        Columns: `value` (binary or string, as `key`), and optionally `key`, `headers` (lists of structs of key and
        value), `timestamp` and `partition`. A null means the same as an argument of `send` that is left out.
        A call that raises TypeError, ValueError or KafkaError (no such topic or partition, row too large) sends no row.
        If the memory stays full for `max_block_ms`, or the topic or the producer is gone after the first rows,
        ColumnsNotAcceptedError says how many rows were accepted before.
        A call that is cancelled may have accepted the first rows. Encoders and interceptors see no columns.
        """
        names = () if self._partitioner is None else getattr(table, "column_names", ())
        if names and (names.count("partition") != 1 or table.column("partition").null_count):
            raise ValueError("the producer has a partitioner: give the table a column 'partition' without nulls")
        return await self._columns.send(topic, table)

    async def flush(self, timeout_s: float | None = None) -> list[UndeliveredRecord]:
        """Send all buffered records and wait for their outcomes, at most for the delivery timeout, or `timeout_s`.

        With `timeout_s`, returns the records that are not delivered: those that were given up since the last report,
        each once, and those that are still being sent. Without, raises the first DeliveryError since the last flush;
        `flush(0)` reports all records then. Each of several flushes that wait for a batch raises its failure.
        """
        batches = await self._settle(math.inf if timeout_s is None else trio.current_time() + timeout_s)
        failure, self._sender.first_failure = self._sender.first_failure, None
        if timeout_s is not None:
            pending = [batch for batch in batches if not batch.outcome.is_over]
            return [*self._sender.undelivered.take(), *undelivered_records(pending)]
        if failure is not None:
            raise failure
        for batch in batches:  # another flush may have raised the first failure
            batch.outcome.raise_error()
        return []

    async def aclose(self, timeout_s: float | None = None) -> list[UndeliveredRecord]:
        """Refuse further records, and wait for buffered ones, at most for the delivery timeout, or `timeout_s`.

        Gives up what is not delivered by then, also if the wait is cancelled. Returns as `close`; the end of the block
        raises none of these failures again.
        """
        self._refuse_records()
        try:
            await self._settle(math.inf if timeout_s is None else trio.current_time() + timeout_s)
        except BaseException:
            self._give_up()
            raise
        undelivered = self.close()
        self._sender.first_failure = None
        return undelivered

    def close(self) -> list[UndeliveredRecord]:
        """Refuse further records, and give up undelivered ones, at once.

        Returns the records that were given up, now or before, and that no flush has reported: each once, so that
        closing twice reports none twice.
        """
        self._give_up()
        return self._sender.undelivered.take()

    def _give_up(self) -> None:
        self._refuse_records()
        self._sender.abandon_all()

    def _refuse_records(self) -> None:
        self._closed = True
        self._routes.clear()

    async def _settle(self, deadline: float) -> list[ProducerBatch]:
        """Send all buffered batches, and return them when they have an outcome, or at the deadline."""
        self._accumulator.close_open_batches()
        self._sender.wake()
        batches = self._accumulator.incomplete()
        for batch in batches:
            await batch.outcome.wait_over(deadline)
        return batches

    async def _accept(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
        callback: DeliveryCallback | None,
    ) -> Delivery:
        """Put a record into a batch. The hot path of a producer: written out, and with few calls."""
        if self._unshared_records >= FAIR_SHARE_RECORDS:
            self._unshared_records = 0
            await trio.lowlevel.checkpoint()
        deadline = math.inf
        route = self._routes.get(topic)
        if route is None or route.view is not self._cluster.view:
            deadline = self._block_deadline()
            route = await self._route(topic, deadline)
        if partition is not None and not 0 <= partition < len(route.partitions):
            route = await self._grown_route(topic, partition)
        charge = MAX_RECORD_OVERHEAD
        if key is not None:
            charge += len(key)
        if value is not None:
            charge += len(value)
        if headers or self.config.record_headers:
            headers = self._all_headers(headers)
            charge += headers_charge(headers)
        accumulator = self._accumulator
        if accumulator.used_bytes + charge > self._room_bytes or charge > self._max_charge or self._memory_waiters:
            await self._wait_for_memory(topic, charge, deadline)
            require_partition(route, topic, partition)
        if timestamp_ms is None:
            timestamp_ms = self._clock()
        if partition is None:
            if self._partitioner is not None:
                partition = route.chosen_by(self._partitioner, topic, key, value)
            elif key is not None:
                partition = (murmur2(key) & 0x7FFFFFFF) % len(route.partitions)
            if partition is None:
                if route.sticky_bytes_left < charge:
                    self._move_on(route)
                route.sticky_bytes_left -= charge
                partition = route.sticky_partition
        batch = route.open_batches[partition]
        if batch is None or batch.closed or not accumulator.append(batch, key, value, headers, timestamp_ms, charge):
            batch = self._begin_batch(route, partition, key, value, headers, timestamp_ms, charge)
        index = batch.record_count - 1
        if callback is not None:
            batch.add_callback(index, timestamp_ms, callback)
        self._unshared_records += 1
        return Delivery(batch, index, timestamp_ms)

    async def _accept_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
        deliveries: Deliveries,
    ) -> None:
        """Put records that are alike into batches, as many at once as fit. Adds to `deliveries` as it goes."""
        headers = self._all_headers(headers)
        overhead = record_charge(key, None, headers)
        self._require_fit(topic, overhead + max(map(len, filter(None, values)), default=0))
        position = 0
        while position < len(values):
            await trio.lowlevel.checkpoint()
            route = self._routes.get(topic)
            if route is None or route.view is not self._cluster.view:
                route = await self._route(topic, self._block_deadline())
            if partition is not None and not 0 <= partition < len(route.partitions):
                route = await self._grown_route(topic, partition)
            charge = overhead + len(values[position] or b"")
            if self._memory_waiters or not self._accumulator.has_room(charge):
                await self._wait_for_memory(topic, charge, self._block_deadline())
                require_partition(route, topic, partition)
            time_ms = self._clock() if timestamp_ms is None else timestamp_ms
            target = partition
            if target is None and key is not None:
                target = partition_for_key(key, len(route.partitions))
            elif target is None:
                if route.sticky_bytes_left < charge:
                    self._move_on(route)
                target = route.sticky_partition
            before_bytes = self._accumulator.used_bytes
            batch = route.open_batches[target]
            first = 0 if batch is None else batch.record_count
            try:
                if batch is None or batch.closed:
                    batch = self._begin_batch(route, target, key, values[position], headers, time_ms, charge)
                    first = 0
                    position += 1
                position = self._accumulator.extend(batch, key, values, position, headers, time_ms)
            finally:
                if batch is not None:
                    deliveries.add(batch, first, batch.record_count - first, time_ms)
            if partition is None and key is None:
                route.sticky_bytes_left -= self._accumulator.used_bytes - before_bytes

    def _all_headers(self, headers: Sequence[Header]) -> Sequence[Header]:
        extra = self.config.record_headers
        return ((*headers, *extra) if headers else extra) if extra else headers

    def _begin_batch(
        self,
        route: TopicRoute,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        charge: int,
    ) -> ProducerBatch:
        target = route.partitions[partition]
        batch = self._accumulator.append_to_new(target, key, value, headers, timestamp_ms, charge, now_ms())
        route.open_batches[partition] = batch
        self._sender.wake()
        self._unshared_records = FAIR_SHARE_RECORDS
        return batch

    def _move_on(self, route: TopicRoute) -> None:
        """Choose another partition for records without a key."""
        chosen = next_sticky_partition(route.candidates, route.sticky_partition, self._rng)
        route.stick_to(chosen, self.config.batch_size - HEADER_SIZE)
        self._sender.wake()

    def _block_deadline(self) -> float:
        return trio.current_time() + self.config.max_block_ms / 1000

    async def _route(self, name: str, deadline: float) -> TopicRoute:
        """Return the route by the newest view. Waits for metadata if the topic is unknown or has no partitions."""
        self._require_open()
        route = self._routes.get(name)
        topic = self._cluster.view.topics.get(name)
        if topic is None or not topic.partitions or (route is None and not topic.led_partitions):
            topic = await self._cluster.topic(name, timeout_s=max(0, deadline - trio.current_time()))
            self._require_open()
        self._cluster.track((name,))
        route = self._routes.setdefault(name, TopicRoute())
        route.follow(topic)
        route.view = self._cluster.view
        return route

    async def _grown_route(self, name: str, partition: int) -> TopicRoute:
        """Refresh the metadata, and return the route if the topic has the partition now."""
        deadline = self._block_deadline()
        await self._cluster.refresh(timeout_s=self.config.max_block_ms / 1000)
        route = await self._route(name, deadline)
        require_partition(route, name, partition)
        return route

    def _require_open(self) -> None:
        """Raise PipelineError after the end of the block, when records are no longer sent. Called after each wait."""
        if self._closed:
            raise PipelineError("the producer is closed: its block has ended")

    def _require_fit(self, topic: str, charge: int) -> None:
        if charge > self._max_charge:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of up to {charge} bytes for {topic}; max.request.size and buffer.memory allow for "
                f"{self._max_charge}",
            )

    async def _wait_for_memory(self, topic: str, charge: int, deadline: float) -> None:
        """Wait for memory behind all that wait already. The caller takes it before it gives up its turn."""
        self._require_fit(topic, charge)
        await self._wait_for_turn(topic, charge, deadline)

    async def _wait_for_turn(self, topic: str, charge: int, deadline: float = math.inf) -> None:
        self._memory_waiters += 1
        try:
            with trio.move_on_at(min(deadline, self._block_deadline())) as scope:
                async with self._memory_turn:
                    while not self._accumulator.has_room(charge):
                        await self._sender.wait_for_memory()
        finally:
            self._memory_waiters -= 1
        if scope.cancelled_caught:
            raise DeadlineExceededError(
                f"no memory for a record for {topic} within max.block.ms ({self.config.max_block_ms}): "
                f"buffer.memory ({self.config.buffer_memory} bytes) is full of undelivered records"
            )
        self._require_open()


@asynccontextmanager
async def open_producer(
    cluster: Cluster,
    config: ProducerConfig,
    *,
    clock: Clock,
    rng: Random,
    on_delivered: Callable[[DeliveredBatch], None] | None = None,
    identity: ProducerIdentity | None = None,
    key_encoder: EncoderLike | None = None,
    value_encoder: EncoderLike | None = None,
    partitioner: Partitioner | None = None,
    interceptors: Sequence[ProducerInterceptor] = (),
    observer: ProducerObserver | None = None,
) -> AsyncIterator[Producer]:
    """Open a producer until the block ends. `on_delivered` is called once for each acknowledged batch.

    Without encoders keys and values are bytes; without a partitioner the partition is the Java client's.
    With `identity`, a producer id whose epoch was never used, brokers remember no further producer (KIP-360).

    A block that ends normally flushes, and may raise DeliveryError; an exception gives up all undelivered records.
    Raises ConfigurationError for objects that are no encoders, partitioner or interceptors.
    """
    require_partitioner(partitioner)
    batch_bytes = min(config.batch_size, config.max_request_size)
    accumulator = Accumulator(
        new_builder=lambda: BatchBuilder(config.compression, batch_bytes, config.compression_level),
        memory_bytes=config.buffer_memory,
        max_request_bytes=config.max_request_size,
        linger_ms=config.linger_ms,
        delivery_timeout_ms=config.delivery_timeout_ms,
        window_ms=config.window_ms,
        idempotent=config.idempotence,
    )
    accumulator.identity = identity
    sender = Sender(cluster, accumulator, config, rng, on_delivered, observer)
    preparation = preparation_of(key_encoder, value_encoder, interceptors)
    producer = Producer(
        cluster, config, accumulator, sender, clock, rng, preparation=preparation, partitioner=partitioner
    )
    try:
        async with background_tasks() as nursery:
            nursery.start_soon(sender.run)
            yield producer
            await producer.flush()
    finally:
        producer.close()
