"""Headers of the batches at given offsets, of many partitions of a leader in one request.

A request of a leader takes all that wait for it, so that thousands of partitions cost few requests. The headers are not
verified: a difference of two headers is a reason to fetch the batches (`divergence.last_batches`), and no proof.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.fetch_plan import FetchBounds, begin_at, fetch_answers, fetch_request
from pipeline.errors import CorruptBatchError, PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import FetchResponse
from pipeline.records.batch import BatchHeader, read_header

MAX_PARTITIONS = 200
MAX_ALONE = 16
"""Requests of one partition that are under way at a leader."""
MAX_EMPTY_ANSWERS = 5
"""Answers without records, below the high watermark, after which there is none. A broker whose disk is slow may send
some: it waits for its disk a second each."""
MAX_PARTITION_BYTES = 1024
"""Bytes of a partition in a request of many. A broker that sends no parts of batches answers larger ones alone."""
LANE = "batch headers"


@dataclass(slots=True, eq=False)
class _Question:
    """A batch to find."""

    partition: TopicPartition
    offset: int
    empty_answers: int = 0
    is_answered: bool = False
    header: BatchHeader | None = None
    error: PipelineError | None = None

    @property
    def is_alone(self) -> bool:
        """True if its request must have no other partition."""
        return self.empty_answers > 0


class BatchHeaders:
    """Asks the leaders of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: dict[BrokerId, deque[_Question]] = {}
        self._turns: dict[BrokerId, trio.Lock] = {}

    async def header_at(self, partition: TopicPartition, offset: int, *, timeout_s: float) -> BatchHeader | None:
        """Return the header of the batch that covers an offset; None if there is none, or it cannot be read.

        Raises KafkaError (OFFSET_OUT_OF_RANGE outside of the log, OFFSET_NOT_AVAILABLE beyond its high watermark),
        NetworkError and DeadlineExceededError.
        """
        await self._cluster.topic(partition.topic, timeout_s=timeout_s)
        leader = self._cluster.view.leader_of(partition)
        if leader is None:  # the topic may have other partitions with leaders, so nobody else asks for metadata
            self._cluster.refresh_soon()
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        question = _Question(partition, offset)
        waiting = self._waiting.setdefault(leader, deque())
        waiting.append(question)
        try:
            while not question.is_answered:
                async with self._turns.setdefault(leader, trio.Lock()):
                    if not question.is_answered:
                        await self._ask(leader, waiting, timeout_s)
        finally:
            if question in waiting:
                waiting.remove(question)
        if question.error is not None:
            raise question.error
        return question.header

    async def _ask(self, leader: BrokerId, waiting: deque[_Question], timeout_s: float) -> None:
        """Answer the questions that wait, as many as one request takes, or some that need requests alone.

        Those that are not answered wait again.
        """
        is_alone = waiting[0].is_alone
        asked: list[_Question] = []
        while waiting and waiting[0].is_alone == is_alone and len(asked) < (MAX_ALONE if is_alone else MAX_PARTITIONS):
            asked.append(waiting.popleft())
        try:
            async with trio.open_nursery() as nursery:
                for together in [[question] for question in asked] if is_alone else [asked]:
                    nursery.start_soon(self._ask_once, leader, together, timeout_s)
        finally:
            waiting.extend(question for question in asked if not question.is_answered)

    async def _ask_once(self, leader: BrokerId, asked: Sequence[_Question], timeout_s: float) -> None:
        try:
            await self._exchange(leader, asked, timeout_s)
        except PipelineError as error:
            self._cluster.refresh_soon()
            for question in asked:
                question.error, question.is_answered = error, True

    async def _exchange(self, leader: BrokerId, asked: Sequence[_Question], timeout_s: float) -> None:
        view = self._cluster.view
        states = []
        for question in asked:
            states.append(begin_at(question.partition, question.offset))
            states[-1].leader_epoch = view.leader_epoch_of(question.partition)
        bounds = FetchBounds(max_bytes=1 << 20, max_partition_bytes=MAX_PARTITION_BYTES, max_wait_ms=0)
        request = fetch_request(states, view, ConsumerConfig(), bounds)
        ids = view.topic_ids(question.partition.topic for question in asked)
        response: FetchResponse = await self._cluster.request(leader, request, timeout_s=timeout_s, lane=LANE)
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(response.error_code, f"fetch from broker {leader}")
        answers = dict(fetch_answers(response, ids))
        for question in asked:
            answer = answers.get(question.partition)
            code = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else ErrorCode.of(answer.error_code)
            records = None if answer is None else answer.records
            if code is not ErrorCode.NONE:
                if code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._cluster.refresh_soon()
                question.error = KafkaError(code, str(question.partition))
            elif answer is not None and not records and 0 <= answer.high_watermark <= question.offset:
                question.error = not_available(question.partition, question.offset, answer.high_watermark)
            elif not records and question.empty_answers < MAX_EMPTY_ANSWERS:
                question.empty_answers += 1
                continue
            elif isinstance(records, memoryview):
                question.header = _header_covering(records, question.offset)
            question.is_answered = True


def not_available(partition: TopicPartition, offset: int, high_watermark: int) -> KafkaError:
    """Return the error of a leader that may have a batch at an offset, and shows it once it is committed."""
    reason = f"{partition}: the batch at offset {offset} is beyond the high watermark, {high_watermark}"
    return KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, reason)


def _header_covering(records: memoryview, offset: int) -> BatchHeader | None:
    try:
        header = read_header(records)
    except CorruptBatchError:
        return None
    return header if header.base_offset <= offset < header.next_offset else None
