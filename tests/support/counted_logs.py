"""Logs without a broker, and what the audit counts of them."""

import uuid
from dataclasses import dataclass, field

from pipeline.audit.broker_counter import BrokerCounter
from pipeline.audit.message import Tier
from pipeline.model import TopicPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.tally import NOTHING, Counts, window_start

CLICKS = TopicPartition("clicks", 0)
INTERNAL = TopicPartition("_audit", 0)
WINDOW_MS = 600_000
FIRST_TOPIC_ID = uuid.UUID(int=1)


def header(base_offset, records=1, *, timestamp=0, crc=1, epoch=0):
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


def summed(batches):
    windows = {}
    for one in batches:
        start = window_start(one.base_timestamp, WINDOW_MS)
        windows[start] = windows.get(start, NOTHING) + Counts.of(one)
    return windows


@dataclass(eq=False)
class Log:
    """A log as the broker shows it to its observer; alone it is all committed, and led."""

    topic_id: uuid.UUID = FIRST_TOPIC_ID
    batches: list = field(default_factory=list)
    log_start_offset: int = 0
    is_leader: bool = True
    leader_epoch: int = 0
    starts: dict = field(default_factory=lambda: {0: 0})
    committed: int | None = None
    topic_partition = CLICKS

    @property
    def log(self):
        return self

    @property
    def log_end_offset(self):
        return self.batches[-1].next_offset if self.batches else self.log_start_offset

    @property
    def high_watermark(self):
        return self.log_end_offset if self.committed is None else self.committed

    def lead(self, epoch):
        self.is_leader, self.leader_epoch = True, epoch
        self.starts[epoch] = self.log_end_offset

    def epoch_start(self, epoch):
        return self.starts.get(epoch)

    def append(self, *shapes):
        new = []
        for records, timestamp, crc in shapes:
            made = header(self.log_end_offset, records, timestamp=timestamp, crc=crc, epoch=self.leader_epoch)
            self.batches.append(made)
            new.append(made)
        return new

    def headers(self, offset):
        return iter([h for h in self.batches if h.next_offset > offset])

    def expected(self):
        return summed(self.batches)


def counter(checkpoints, now_ms=lambda: 5):
    return BrokerCounter("east", WINDOW_MS, checkpoints, clock=now_ms)


def load(broker, log):
    broker.loaded(log)


def ledger_counts(ledger):
    found = ledger.counts("east", Tier.BROKER, CLICKS, WINDOW_MS)
    return {} if found is None else {start: report.counts for start, report in found.windows.items()}
