"""InitProducerId (22), versions 0 to 6: a producer id and epoch for idempotent produce (KIP-98).

Version 2 is flexible, 3 lets a producer raise its own epoch (KIP-360), 4 may answer PRODUCER_FENCED (KIP-588), 5 is for
transactions (KIP-890), 6 for two-phase commit (KIP-939).

The tagged field 10000, ours, asks for an id with the mark of producers that the audit counts.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Bool, Int16, Int32, Int64, Message, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest(Message):
    """A request for a producer id, or for a new epoch of one."""

    API_KEY: ClassVar[int] = 22
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    transactional_id: String | None = None
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, Wire(since=3)] = -1
    producer_epoch: Annotated[Int16, Wire(since=3)] = -1
    enable_2pc: Annotated[Bool, Wire(since=6)] = False
    keep_prepared_txn: Annotated[Bool, Wire(since=6)] = False
    is_counted: Annotated[Bool, Wire(since=2, tag=10000, ignorable=True)] = False
    """True if the producer reports its batches to the audit: see `records.producer_marks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse(Message):
    """The producer id and epoch to use."""

    API_KEY: ClassVar[int] = 22
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    ongoing_txn_producer_id: Annotated[Int64, Wire(since=6, ignorable=True)] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, Wire(since=6, ignorable=True)] = -1
