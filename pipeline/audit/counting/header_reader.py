"""Reader of a cluster whose brokers do not count: fetches all batches, and counts their headers.

Kafka has no request for headers alone, so every byte of the counted topics comes over the network once. Batches are
verified by their checksums and never opened.

Invariants:
A. What is counted is what the log holds below the high watermark, in the order of offsets (`header_counter.py`).
B. A partition that cannot be read (a message format before version 2, a damaged batch, no permission) halts alone. Its
   reason is in the status and in the metrics, it is tried again, and no report vouches for it meanwhile.
C. A topic that is missing in a few answers about the cluster is still counted: a broker may lag behind.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import trio

from pipeline.audit.counting.header_counter import HeaderCounter, text_of
from pipeline.audit.counting.read_back import FoundReports
from pipeline.audit.counting.reader_config import ReaderConfig
from pipeline.audit.events.tiers import is_audited
from pipeline.client.admin.offsets import list_offsets_once
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, OffsetReset
from pipeline.client.consumer.byte_rate import ByteRate, FetchLimit
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.errors import (
    PartitionFetchError,
    PartitionOffsetOutOfRangeError,
    PartitionTruncatedError,
)
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.model import Clock, TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.batch import iterate_headers

MAX_COUNTED: Final = 100_000
"""Partitions that are counted; more are named in the log."""
ABSENT_ROUNDS: Final = 3
"""Answers in a row without a topic after which the topic counts as deleted (invariant C)."""
START_ROUNDS: Final = 6
"""Rounds between two looks at the log start offsets of all partitions."""
MAX_SHOWN: Final = 1_000
POLL_S: Final = 1.0
LANE: Final = "log starts"

_GONE = frozenset({ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

logger = get_logger(__name__)


class HeaderReader:
    """Counts the selected topics of one cluster while `run` runs."""

    def __init__(
        self, config: ReaderConfig, source: Cluster, counter: HeaderCounter, found: FoundReports, clock: Clock
    ) -> None:
        """`found`: reports of earlier readers, from which counting goes on."""
        self._config = config
        self._source = source
        self._counter = counter
        self._found = found
        self._clock = clock
        self._ids: dict[TopicPartition, UUID] = {}
        self._absent: Counter[TopicPartition] = Counter()
        self.halted: dict[TopicPartition, str] = {}
        """Reasons why partitions cannot be read."""
        self._retry_at: dict[TopicPartition, float] = {}
        self._rounds = 0
        self.error: str | None = "the cluster has not been read yet"
        """Reason why the cluster's topics are not known; None if they are."""
        rate = ByteRate(config.throttle_bytes_per_s)
        self._limit = None if config.throttle_bytes_per_s is None else FetchLimit([rate])

    async def run(self) -> None:
        """Count until cancelled."""
        config = ConsumerConfig(
            max_bytes=self._config.fetch_max_bytes,
            max_partition_bytes=self._config.fetch_max_bytes,
            auto_offset_reset=OffsetReset.NONE,
        )
        limit = self._limit
        async with (
            open_consumer(self._source, config, self._note_answers, lambda _partition: limit) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._watch_topics, consumer)
            while True:
                await self._poll(consumer)

    def status(self) -> dict[str, Any]:
        """Return the document of `/v1/status`."""
        halted = sorted(self.halted.items())
        return {
            "datacenter": self._config.datacenter,
            "error": self.error,
            "partitions": len(self._counter.partitions),
            "lag_ms": self._counter.lag_ms(self._clock()),
            "halted_partitions": len(halted),
            "halted": [{"partition": str(each), "reason": reason} for each, reason in halted[:MAX_SHOWN]],
        }

    # Batches.

    def _note_answers(self, answered: Sequence[tuple[TopicPartition, int]], asked_at: float) -> None:
        asked_ms = self._clock() - round((trio.current_time() - asked_at) * 1000)
        for partition, high_watermark in answered:
            self._counter.note_end(partition, high_watermark, asked_ms)

    async def _poll(self, consumer: Consumer) -> None:
        """Count what was fetched. A partition that lost records begins anew; one that cannot be fetched halts."""
        try:
            polled = await consumer.poll_batches(POLL_S)
        except PartitionOffsetOutOfRangeError as error:
            self._follow_bounds(consumer, error)
        except PartitionTruncatedError as error:
            self._follow_truncation(consumer, error)
        except PartitionFetchError as error:
            self._halt(consumer, error)
        else:
            for batches in polled:
                self._count(batches)

    def _count(self, batches: FetchedBatches) -> None:
        partition = batches.topic_partition
        if partition in self._counter.partitions:
            headers = [header for _, header in iterate_headers(batches.data)]
            self._counter.count(partition, headers, batches.next_offset, batches.log_start_offset)
            self.halted.pop(partition, None)

    def _follow_bounds(self, consumer: Consumer, error: PartitionOffsetOutOfRangeError) -> None:
        partition = error.topic_partition
        if partition not in self._counter.partitions:
            return
        if error.requested < error.log_start_offset:
            logger.warning(
                "counter_overtaken_by_retention",
                partition=str(partition),
                first=error.requested,
                before=error.log_start_offset,
                help="records were deleted before they were counted: run the reader all the time, without a throttle",
            )
            self._counter.pass_over(partition, error.log_start_offset)
        else:
            logger.error(
                "counted_log_truncated", partition=str(partition), counted=error.requested, end=error.log_end_offset
            )
            self._counter.begin_anew(partition, error.log_start_offset, error.log_end_offset)
        self._go_on(consumer, partition)

    def _follow_truncation(self, consumer: Consumer, error: PartitionTruncatedError) -> None:
        partition = error.topic_partition
        if partition not in self._counter.partitions:
            return
        logger.error("counted_log_truncated", partition=str(partition), counted=error.offset, end=error.end_offset)
        self._counter.begin_anew(partition, None, error.end_offset)
        self._go_on(consumer, partition)

    def _halt(self, consumer: Consumer, error: PartitionFetchError) -> None:
        partition = error.topic_partition
        consumer.remove(partition)
        if isinstance(error.cause, KafkaError) and error.cause.code in _GONE:
            self._forget(consumer, partition)
            return
        reason = str(error)
        if self.halted.get(partition) != reason:
            logger.error("partition_not_counted", partition=str(partition), error=reason)
        self.halted[partition] = reason
        self._retry_at[partition] = trio.current_time() + self._config.retry_backoff_ms / 1000

    # Topics.

    async def _watch_topics(self, consumer: Consumer) -> None:
        """Count topics that appear, and no longer those that are gone, until cancelled."""
        while True:
            try:
                with unwrapped_errors():
                    await self._look(consumer)
                pause_ms, self.error = self._config.refresh_interval_ms, None
            except PipelineError as error:
                pause_ms, self.error = self._config.retry_backoff_ms, str(error)
                logger.warning("counted_cluster_not_readable", error=str(error))
            await trio.sleep(pause_ms / 1000)

    async def _look(self, consumer: Consumer) -> None:
        timeout_s = self._config.timeout_ms / 1000
        view = await self._source.fetch_all_topics(timeout_s=timeout_s)
        selected = {
            TopicPartition(topic.name, number): topic.id
            for topic in view.topics.values()
            if is_audited(topic.name) and self._config.selects(topic.name)
            for number in topic.partitions
        }
        self._forget_absent(consumer, selected)
        for partition in [each for each, topic_id in self._ids.items() if selected.get(each, topic_id) != topic_id]:
            logger.warning("counted_topic_recreated", partition=str(partition))
            self._forget(consumer, partition)
        await self._begin_new(consumer, selected, timeout_s)
        for partition in [each for each, at in self._retry_at.items() if at <= trio.current_time()]:
            del self._retry_at[partition]
            if partition in self._ids:
                self._go_on(consumer, partition)
        self._rounds += 1
        if self._rounds % START_ROUNDS == 0:
            for partition, start in (await self._starts(list(self._ids), timeout_s)).items():
                self._counter.note_start(partition, start)

    def _forget_absent(self, consumer: Consumer, selected: Mapping[TopicPartition, UUID]) -> None:
        for partition in [each for each in self._ids if each not in selected]:
            self._absent[partition] += 1
            if self._absent[partition] >= ABSENT_ROUNDS:
                logger.warning("counted_topic_gone", partition=str(partition))
                self._forget(consumer, partition)
        for partition in [each for each in self._absent if each in selected or each not in self._ids]:
            del self._absent[partition]

    async def _begin_new(self, consumer: Consumer, selected: Mapping[TopicPartition, UUID], timeout_s: float) -> None:
        new = [partition for partition in sorted(selected) if partition not in self._ids]
        room = MAX_COUNTED - len(self._ids)
        if len(new) > room:
            logger.error(
                "too_many_partitions",
                counted=MAX_COUNTED,
                left_out=len(new) - room,
                first=str(new[room]),
                help="divide the topics among several readers by `topics` and `topics.exclude`",
            )
            new = new[:room]
        for partition, start in (await self._starts(new, timeout_s)).items():
            if partition in self._ids:
                continue
            topic_id = selected[partition]
            known = self._found.take_counts(partition, text_of(topic_id))
            self._ids[partition] = topic_id
            self._counter.begin(partition, topic_id, start, known)
            self._go_on(consumer, partition)

    async def _starts(self, partitions: Sequence[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, int]:
        """Return the log start offsets of partitions whose leaders answer."""
        if not partitions:
            return {}
        asked = dict.fromkeys(partitions, EARLIEST)
        listed, errors = await list_offsets_once(self._source, asked, timeout_s=timeout_s, lane=LANE)
        if errors:
            logger.warning("log_starts_not_known", partitions=len(asked) - len(listed), error=str(errors[0]))
        return {partition: each.offset for partition, each in listed.items()}

    def _go_on(self, consumer: Consumer, partition: TopicPartition) -> None:
        """Fetch a partition from where it is counted to."""
        offset, epoch = self._counter.place(partition)
        topic_id = self._ids[partition]
        consumer.add(partition, offset, None if topic_id == ZERO_UUID else topic_id, leader_epoch=epoch)

    def _forget(self, consumer: Consumer, partition: TopicPartition) -> None:
        consumer.remove(partition)
        self._counter.forget(partition)
        for each in (self._ids, self.halted, self._retry_at):
            each.pop(partition, None)
