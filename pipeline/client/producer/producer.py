"""The producer: records in, batches out, one delivery for each record.

`send` is the hot path: it appends to a batch in memory, and is a checkpoint only if it begins a batch, after
`FAIR_SHARE_RECORDS`, for a new topic, and if the memory is full. `sender.py` sends.

Invariants: `send` waits only before it accepts the record, so a cancelled `send` sends nothing. Records that a task
sends to a partition arrive in that order. With idempotence (the default) each record is written exactly once, unless
its delivery fails.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import trio

from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.cluster.metadata import ClusterMetadata, TopicMetadata
from pipeline.client.producer.accumulator import Accumulator, record_charge
from pipeline.client.producer.batches import DeliveredBatch, DeliveryCallback, ProducerBatch, ProducerIdentity
from pipeline.client.producer.delivery import Delivery
from pipeline.client.producer.partitioner import next_sticky_partition, partition_for_key
from pipeline.client.producer.sender import Sender, now_ms
from pipeline.errors import DeadlineExceededError, PipelineError
from pipeline.model import Clock, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import HEADER_SIZE
from pipeline.records.builder import BatchBuilder, Header

FAIR_SHARE_RECORDS = 256


class _Route:
    """The partitions for the records of a topic, by one view of the cluster."""

    __slots__ = ("candidates", "partitions", "sticky_batch", "sticky_bytes_left", "sticky_partition", "view")

    def __init__(self) -> None:
        self.view: ClusterMetadata | None = None
        self.partitions: list[TopicPartition] = []
        self.candidates: list[int] = []
        """Numbers of the partitions for records without a key; never empty."""
        self.sticky_partition: int | None = None
        self.sticky_batch: ProducerBatch | None = None
        self.sticky_bytes_left = 0

    def follow(self, topic: TopicMetadata) -> None:
        """Take over the partitions of a topic that has any. A recreated topic may have fewer than before."""
        count = len(topic.partitions)
        if count != len(self.partitions):
            self.partitions = [TopicPartition(topic.name, number) for number in range(count)]
        self.candidates = [number for number in topic.led_partitions if number < count] or list(range(count))


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
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._accumulator = accumulator
        self._sender = sender
        self._clock = clock
        self._rng = rng
        self._routes: dict[str, _Route] = {}
        self._memory_turn = trio.StrictFIFOLock()
        self._max_charge = min(config.buffer_memory, config.max_request_size) - HEADER_SIZE
        self._unshared_records = 0
        self._closed = False

    @property
    def identity(self) -> ProducerIdentity | None:
        """Producer id and epoch; None if it has none yet, or none that it may use again."""
        return self._accumulator.identity

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
        callback: DeliveryCallback | None = None,
    ) -> Delivery:
        """Accept a record, to be sent in the background. Waits only for metadata of a new topic and for memory.

        Without `partition`, equal keys go to one partition, as with Java clients; without a key the partition changes
        from batch to batch. `callback` is called when the outcome is known, and must not take long.

        A call that raises or is cancelled sends nothing. Raises KafkaError (no such topic or partition, record too
        large), and DeadlineExceededError if the memory stays full for `max_block_ms`, since the brokers are slower
        than the program.
        """
        if self._unshared_records >= FAIR_SHARE_RECORDS:
            self._unshared_records = 0
            await trio.lowlevel.checkpoint()
        route = self._routes.get(topic)
        if route is None or route.view is not self._cluster.view or self._closed:
            route = await self._route(topic)
        if self._config.record_headers:
            headers = (*headers, *self._config.record_headers) if headers else self._config.record_headers
        charge = record_charge(key, value, headers)
        if charge > self._max_charge or not self._accumulator.has_room(charge) or self._memory_turn.locked():
            await self._wait_for_memory(topic, charge)
        if timestamp_ms is None:
            timestamp_ms = self._clock()
        is_sticky = partition is None and key is None
        if partition is None:
            partition = self._sticky(route, charge) if key is None else partition_for_key(key, len(route.partitions))
        elif not 0 <= partition < len(route.partitions):
            route = await self._grown_route(topic, partition)
        target = route.partitions[partition]
        batch = self._accumulator.append(target, key, value, headers, timestamp_ms, charge)
        if batch is None:
            batch = self._accumulator.append_to_new(target, key, value, headers, timestamp_ms, charge, now_ms())
            self._sender.wake()
            self._unshared_records = FAIR_SHARE_RECORDS
        if is_sticky:
            route.sticky_batch = batch
        index = batch.record_count - 1
        if callback is not None:
            batch.add_callback(index, timestamp_ms, callback)
        self._unshared_records += 1
        return Delivery(batch, index, timestamp_ms)

    async def flush(self) -> None:
        """Send all buffered records and wait for their outcomes, at most for the delivery timeout.

        Returns if all records since the last flush are acknowledged; raises the first DeliveryError otherwise. Each of
        several flushes that wait for a batch raises its failure.
        """
        self._accumulator.close_open_batches()
        self._sender.wake()
        batches = self._accumulator.incomplete()
        for batch in batches:
            await batch.outcome.wait_over()
        failure, self._sender.first_failure = self._sender.first_failure, None
        if failure is not None:
            raise failure
        for batch in batches:  # another flush may have raised the first failure
            if batch.outcome.error is not None:
                raise batch.outcome.error

    def close(self) -> None:
        """Refuse further records, and give up undelivered ones. Closing twice does nothing."""
        self._closed = True
        self._sender.abandon_all()

    def _sticky(self, route: _Route, charge: int) -> int:
        """Return the partition of the current batch, or another if that partition is gone or its batch is full."""
        batch = route.sticky_batch
        route.sticky_bytes_left -= charge
        is_over = batch is None or batch.closed or route.sticky_bytes_left < 0
        if is_over or route.sticky_partition is None or route.sticky_partition >= len(route.partitions):
            if batch is not None and not batch.closed:
                batch.closed = True
                self._sender.wake()
            route.sticky_partition = next_sticky_partition(route.candidates, route.sticky_partition, self._rng)
            route.sticky_bytes_left = self._config.batch_size - HEADER_SIZE - charge
        return route.sticky_partition

    async def _route(self, name: str) -> _Route:
        """Return the route by the newest view. Waits for metadata if the topic is unknown or has no partitions."""
        self._require_open()
        route = self._routes.get(name)
        topic = self._cluster.view.topics.get(name)
        if topic is None or not topic.partitions or (route is None and not topic.led_partitions):
            topic = await self._cluster.topic(name, timeout_s=self._config.max_block_ms / 1000)
            self._require_open()
        self._cluster.track((name,))
        route = self._routes.setdefault(name, _Route())
        route.follow(topic)
        route.view = self._cluster.view
        return route

    async def _grown_route(self, name: str, partition: int) -> _Route:
        """Refresh the metadata, and return the route if the topic has the partition now."""
        await self._cluster.refresh(timeout_s=self._config.max_block_ms / 1000)
        route = await self._route(name)
        if not 0 <= partition < len(route.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name}-{partition}")
        return route

    def _require_open(self) -> None:
        """Raise PipelineError after the end of the block, when records are no longer sent. Called after each wait."""
        if self._closed:
            raise PipelineError("the producer is closed: its block has ended")

    async def _wait_for_memory(self, topic: str, charge: int) -> None:
        if charge > self._max_charge:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of up to {charge} bytes for {topic}; max.request.size and buffer.memory allow for "
                f"{self._max_charge}",
            )
        with trio.move_on_after(self._config.max_block_ms / 1000) as scope:
            async with self._memory_turn:
                while not self._accumulator.has_room(charge):
                    await self._sender.wait_for_memory()
        if scope.cancelled_caught:
            raise DeadlineExceededError(
                f"no memory for a record for {topic} within max.block.ms ({self._config.max_block_ms}): "
                f"buffer.memory ({self._config.buffer_memory} bytes) is full of undelivered records"
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
) -> AsyncIterator[Producer]:
    """Open a producer until the block ends. `on_delivered` is called once for each acknowledged batch.

    With `identity`, a producer id whose epoch was never used, brokers remember no further producer (KIP-360).

    A block that ends normally flushes, and may raise DeliveryError; an exception gives up all undelivered records.
    """
    accumulator = Accumulator(
        new_builder=lambda: BatchBuilder(config.compression, config.batch_size),
        memory_bytes=config.buffer_memory,
        max_request_bytes=config.max_request_size,
        linger_ms=config.linger_ms,
        delivery_timeout_ms=config.delivery_timeout_ms,
        window_ms=config.window_ms,
        idempotent=config.idempotence,
    )
    accumulator.identity = identity
    sender = Sender(cluster, accumulator, config, rng, on_delivered)
    producer = Producer(cluster, config, accumulator, sender, clock, rng)
    try:
        async with background_tasks() as nursery:
            nursery.start_soon(sender.run)
            yield producer
            await producer.flush()
    finally:
        producer.close()
