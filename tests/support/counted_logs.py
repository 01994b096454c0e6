"""Logs without a broker, and what the audit counts of them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.audit.broker_counter import BrokerCounter
from pipeline.audit.checkpoints import PartitionCheckpoints
from pipeline.audit.message import Tier
from pipeline.audit.older_ledger import Ledger
from pipeline.model import TopicPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.tally import NOTHING, Counts, window_start

CLICKS = TopicPartition("clicks", 0)
INTERNAL = TopicPartition("_audit", 0)
WINDOW_MS = 600_000
FIRST_TOPIC_ID = uuid.UUID(int=1)


def header(base_offset: int, records: int = 1, *, timestamp: int = 0, crc: int = 1, epoch: int = 0) -> BatchHeader:
    return BatchHeader(
        base_offset=base_offset,
        batch_length=88,
        partition_leader_epoch=epoch,
        magic=2,
        crc=crc,
        attributes=0,
        last_offset_delta=records - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=records,
    )


def summed(batches: Sequence[BatchHeader]) -> dict[int, Counts]:
    windows: dict[Any, Any] = {}
    for one in batches:
        start = window_start(one.base_timestamp, WINDOW_MS)
        windows[start] = windows.get(start, NOTHING).with_batch(one)
    return windows


@dataclass(eq=False)
class Log:
    """A log as the broker shows it to its observer; alone it is all committed, and led."""

    topic_id: uuid.UUID = FIRST_TOPIC_ID
    batches: list[Any] = field(default_factory=list)
    log_start_offset: int = 0
    is_leader: bool = True
    leader_epoch: int = 0
    starts: dict[int, int] = field(default_factory=lambda: {0: 0})
    committed: int | None = None
    topic_partition = CLICKS

    @property
    def log(self) -> "Log":
        return self

    @property
    def log_end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self.log_end_offset if self.committed is None else self.committed

    def lead(self, epoch: int) -> None:
        self.is_leader, self.leader_epoch = True, epoch
        self.starts[epoch] = self.log_end_offset

    def epoch_start(self, epoch: int) -> int | None:
        return self.starts.get(epoch)

    def append(self, *shapes: tuple[int, ...]) -> list[BatchHeader]:
        new = []
        for records, timestamp, crc in shapes:
            made = header(self.log_end_offset, records, timestamp=timestamp, crc=crc, epoch=self.leader_epoch)
            self.batches.append(made)
            new.append(made)
        return new

    def headers(self, offset: int) -> Any:
        return iter([h for h in self.batches if h.next_offset > offset])

    def expected(self) -> dict[int, Counts]:
        return summed(self.batches)


def counter(checkpoints: PartitionCheckpoints, now_ms: Any = lambda: 5) -> BrokerCounter:
    return BrokerCounter("east", WINDOW_MS, checkpoints, clock=now_ms)


def load(broker: BrokerCounter, log: Any) -> None:
    broker.loaded(log)


def ledger_counts(ledger: Ledger) -> Any:
    found = ledger.counts("east", Tier.BROKER, CLICKS, WINDOW_MS)
    return {} if found is None else {start: report.counts for start, report in found.windows.items()}
