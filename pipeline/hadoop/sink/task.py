"""Writes the rows of one attempt of a task: rows in, acknowledged batches in the topics.

Invariants:
- An attempt reads what earlier ones left in the topic before it writes, and goes on behind it. Only an attempt that
  Spark calls the first, and whose identity the partitions do not know, reads nothing.
- Rows that differ from what an earlier attempt wrote at their place are written again, under another identity: rows
  may then be there twice, none is lost.
- An attempt ends without error only after all its rows are in the log, acknowledged by all replicas in sync.
"""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.errors import PipelineError
from pipeline.hadoop.sink.avro_values import AvroValues
from pipeline.hadoop.sink.columns import cut, rows_by_partition, topics_of
from pipeline.hadoop.sink.earlier import Earlier, read_earlier
from pipeline.hadoop.sink.identity import TaskIdentity, task_identity
from pipeline.hadoop.sink.options import SinkOptions
from pipeline.model import Clock, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import MAX_SEQUENCE
from pipeline.records.column_builder import build_batch

DELIVERY_TIMEOUT_S = 120.0
MAX_REQUEST_BYTES = 16 * 1024 * 1024


class SinkError(PipelineError):
    """Rows were not written. Another attempt of the task goes on behind those that were."""


@dataclass(slots=True)
class _Target:
    """State of one partition. `earlier` is None if all rows are to be written."""

    identity: TaskIdentity
    earlier: Earlier | None
    next_sequence: int = 0
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_bytes: int = 0


class AttemptWriter:
    """Writes the rows of an attempt. `since`: offsets before which no attempt wrote.

    `is_first`: Spark knows of no earlier attempt. There may have been one, as a repeated stage counts anew.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: SinkOptions,
        identity: TaskIdentity,
        since: Mapping[TopicPartition, int],
        clock: Clock,
        *,
        is_first: bool,
        avro: AvroValues | None = None,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._identity = identity
        self._since = since
        self._is_first = is_first
        self._avro = avro
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._earlier: dict[TopicPartition, Earlier] = {}
        self._targets: dict[TopicPartition, _Target] = {}
        self._chunks = identity.producer_id

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics that rows went to."""
        return tuple(self._counts)

    async def write_all(self, rows: Iterator[pa.RecordBatch]) -> None:
        """Write all rows. Waits for Spark in a thread. Raises SinkError, KafkaError (unknown topic), ValueError."""
        while (chunk := await trio.to_thread.run_sync(next, rows, None)) is not None:
            if self._avro is not None:
                chunk = self._avro.encode(chunk)
            for topic in topics_of(chunk, self._options.topic):
                await self._open(topic)
            self._chunks += 1  # rows without a key go to one partition per chunk
            for partition, share in rows_by_partition(chunk, self._options.topic, self._counts, self._chunks):
                self._add(partition, share)
            await self._send(self._options.batch_bytes)
        await self._send(1)

    async def _open(self, topic: str) -> None:
        if topic not in self._counts:
            self._counts[topic] = len((await self._cluster.topic(topic)).partitions)
            self._earlier |= await read_earlier(
                self._cluster, topic, self._since, self._identity, is_first=self._is_first
            )

    def _add(self, partition: TopicPartition, rows: pa.RecordBatch) -> None:
        target = self._targets.get(partition)
        if target is None:
            target = self._targets[partition] = _Target(self._identity, self._earlier.pop(partition, None))
        if target.earlier is not None:
            known = target.earlier.take_equal(rows)
            if known is None:
                target.earlier, target.next_sequence = None, 0
                target.identity = task_identity(uuid.uuid4().hex, 0, 0)
            else:
                target.next_sequence += known
                rows = rows.slice(known)
                if rows.num_rows:
                    target.earlier = None
        for share in cut(rows, self._options.batch_bytes):
            target.pending.append(share)
            target.pending_bytes += share.nbytes

    async def _send(self, at_least_bytes: int) -> None:
        """Send batches until no partition has `at_least_bytes` pending: one of each partition at a time."""
        while ready := [target for target in self._targets.items() if target[1].pending_bytes >= at_least_bytes]:
            built: dict[TopicPartition, bytearray] = {}
            for partition, target in ready:
                built[partition] = self._build(target)
                if sum(map(len, built.values())) >= MAX_REQUEST_BYTES:
                    break
            results = await raw_produce(
                self._cluster, built, keep_offsets=False, is_repeatable=True, timeout_s=DELIVERY_TIMEOUT_S
            )
            for partition in built:
                error = results[partition].error
                if error is not None:
                    raise SinkError(f"{partition}: rows were not written: {error}{_hint(error)}") from error

    def _build(self, target: _Target) -> bytearray:
        taken: list[pa.RecordBatch] = []
        size = 0
        while target.pending and (not taken or size + target.pending[0].nbytes <= self._options.batch_bytes):
            taken.append(target.pending.pop(0))
            size += taken[-1].nbytes
        target.pending_bytes = sum(share.nbytes for share in target.pending)
        rows = pa.Table.from_batches(taken).combine_chunks().to_batches()[0]
        batch = build_batch(
            rows,
            codec=self._options.codec,
            timestamp_ms=self._clock(),
            producer_id=target.identity.producer_id,
            producer_epoch=target.identity.producer_epoch,
            base_sequence=target.next_sequence,
        )
        target.next_sequence = (target.next_sequence + rows.num_rows) & MAX_SEQUENCE
        return batch


def _hint(error: PipelineError) -> str:
    code = error.code if isinstance(error, KafkaError) else None
    if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return "; another attempt of this task writes at the same time"
    if code in {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}:
        return "; a later micro batch of this query has written. A checkpoint that was set back cannot be continued"
    return ""
