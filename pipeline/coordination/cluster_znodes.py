"""The znodes of the controller and of notifications between brokers, in Kafka's layout. Pure.

Source: Kafka's ZkData. As in `znodes`, `decode` raises nothing but `CoordinationError` with the path of the znode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pydantic import BaseModel

from pipeline.coordination.znodes import Int32, NodeId, from_json, to_json
from pipeline.errors import CoordinationError
from pipeline.model import BrokerId, TopicPartition
from pipeline.settings import MAX_INT32

STATE_CHANGES = "/isr_change_notification"
MAX_DIGITS = 10
STATE_CHANGE_PREFIX = f"{STATE_CHANGES}/isr_change_"
"""Sequential znodes: ten digits follow."""


class _ControllerJson(BaseModel):
    version: int
    brokerid: NodeId
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerNode:
    """The broker that is the controller: `/controller`, gone with its session."""

    PATH: ClassVar[str] = "/controller"

    broker: BrokerId
    timestamp_ms: int

    def encode(self) -> bytes:
        """JSON version 1."""
        return to_json({"version": 1, "brokerid": self.broker, "timestamp": str(self.timestamp_ms)})

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """JSON version 1."""
        fields = from_json(cls.PATH, data, _ControllerJson)
        return cls(broker=fields.brokerid, timestamp_ms=fields.timestamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerEpoch:
    """The number of controllers so far: `/controller_epoch`. A controller's writes require its own version."""

    PATH: ClassVar[str] = "/controller_epoch"

    epoch: int

    def encode(self) -> bytes:
        """The number as text."""
        return str(self.epoch).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The number as text."""
        try:
            if len(data) > MAX_DIGITS or not 0 <= (epoch := int(data)) < MAX_INT32:
                raise ValueError
            return cls(epoch=epoch)
        except ValueError as error:
            raise CoordinationError(cls.PATH, "holds no number") from error


class _PartitionJson(BaseModel):
    topic: str
    partition: Int32


class _StateChangeJson(BaseModel):
    version: int
    partitions: list[_PartitionJson]


def encode_state_change(partitions: Sequence[TopicPartition]) -> bytes:
    """Encode the partitions whose states changed, for a znode at `STATE_CHANGE_PREFIX`: JSON version 1."""
    changed = [{"topic": changed.topic, "partition": changed.partition} for changed in partitions]
    return to_json({"version": 1, "partitions": changed})


def decode_state_change(path: str, data: bytes) -> list[TopicPartition]:
    """Decode the partitions of a notification. Raises CoordinationError."""
    changed = from_json(path, data, _StateChangeJson).partitions
    return [TopicPartition(item.topic, item.partition) for item in changed]
