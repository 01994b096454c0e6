"""Scripted brokers that go wrong at random: refusals before and after the append, lost requests and answers, late
appends. What they say is true: a broker that has a batch never says that it certainly has not.
"""

from dataclasses import replace
from random import Random
from typing import Any

import trio

from pipeline.errors import ProtocolError
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from pipeline.protocol.schema import Message
from pipeline.records.batch import BatchHeader
from tests.support.scripted_broker import Partition, ScriptedCluster

BEFORE_APPEND = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)
AFTER_APPEND = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)
MAX_DELAY_S = 3


class WaywardCluster(ScriptedCluster):
    """Brokers of which each request, and each partition of it, goes wrong with the probability `rate`."""

    def __init__(self, rng: Random, rate: float, nursery: trio.Nursery) -> None:
        super().__init__()
        self._rng = rng
        self._rate = rate
        self._nursery = nursery

    def move_leader(self, topic: str) -> None:
        """Have broker 1 or 2 lead a partition, in the next epoch."""
        partition = self._rng.choice(list(self.topics[topic].values()))
        partition.leader = BrokerId(self._rng.choice((1, 2)))
        partition.epoch += 1

    @staticmethod
    def _check_sequence(partition: Partition, header: BatchHeader) -> tuple[ErrorCode, int]:
        """As real brokers do, which take any sequence number of a producer that they do not know."""
        last = partition.last_of_producer.get((header.producer_id, header.producer_epoch))
        if last is None:
            return ErrorCode.NONE, -1
        if (last.base_sequence, last.last_sequence) == (header.base_sequence, header.last_sequence):
            return ErrorCode.NONE, last.base_offset
        is_next = header.base_sequence == last.last_sequence + 1
        return (ErrorCode.NONE if is_next else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), -1

    async def _produce(self, broker: BrokerId, request: ProduceRequest) -> Message | None:
        fate = self._rng.choice(("slow", "late", "close", "close after")) if self._goes_wrong() else ""
        if fate == "slow":
            await trio.sleep(self._rng.uniform(0, MAX_DELAY_S))
        elif fate == "late":
            for topic in request.topic_data:
                for data in topic.partition_data:
                    assert isinstance(data.records, memoryview)
                    kept = replace(data, records=memoryview(bytes(data.records)))
                    self._nursery.start_soon(self._append_later, self._name(topic.name, topic.topic_id), kept)
        if fate in {"late", "close"}:
            raise ProtocolError("the request is lost")
        response = ProduceResponse(responses=[self._answer(broker, topic) for topic in request.topic_data])
        if fate == "close after":
            raise ProtocolError("the answer is lost")
        return response

    def _answer(self, broker: BrokerId, topic: TopicProduceData) -> TopicProduceResponse:
        name = self._name(topic.name, topic.topic_id)
        parts = []
        for data in topic.partition_data:
            if self._goes_wrong():
                parts.append(PartitionProduceResponse(index=data.index, error_code=self._rng.choice(BEFORE_APPEND)))
                continue
            answer = self._append(broker, name, data)
            if answer.error_code == ErrorCode.NONE and self._goes_wrong():
                answer = PartitionProduceResponse(index=data.index, error_code=self._rng.choice(AFTER_APPEND))
            if not self._goes_wrong():  # else the answer leaves the partition out
                parts.append(answer)
        return TopicProduceResponse(name=name, topic_id=topic.topic_id, partition_responses=parts)

    async def _append_later(self, topic: str, data: PartitionProduceData) -> None:
        """Append as a broker does that was stopped with the request in its buffers."""
        await trio.sleep(self._rng.uniform(0, MAX_DELAY_S))
        self._append(self.topics[topic][data.index].leader, topic, data)

    def _goes_wrong(self) -> Any:
        return self._rng.random() < self._rate / 3
