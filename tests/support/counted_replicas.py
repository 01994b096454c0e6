"""Logs without a broker, the counter that counts them, and what its reports say."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline.audit.counting.broker_counter import BrokerCounter, BrokerLife
from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.audit.counting.windows import WindowSums
from pipeline.audit.events.encoding import decode_count_report, encode_count_report
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.ledger.ledger import Ledger, SeriesKey
from pipeline.audit.ledger.row_table import ABSENT
from pipeline.model import TopicPartition
from pipeline.records.batch import HEADER_SIZE, BatchHeader, header_bytes
from pipeline.records.batch_hashes import header_table
from pipeline.records.tally import HOUR_MS

CLICKS = TopicPartition("clicks", 0)
INTERNAL = TopicPartition("_audit", 0)
WINDOW_MS = 600_000
FIRST_TOPIC_ID = uuid.UUID(int=1)
LIFE = BrokerLife(broker_id=7, host="east-7", started_ms=3, interval_ms=10_000)


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


class Row(NamedTuple):
    """What a row says, but for how far was counted."""

    records: int
    batches: int
    bytes: int
    crc_sum: int
    content_sum: int
    place_sum: int
    first_offset: int
    last_offset: int


def rows_of(rows: Any) -> dict[tuple[int, int], Row]:
    """By start and span."""
    return {(int(row["start_ms"]), int(row["span_ms"])): Row(*(int(row[name]) for name in Row._fields)) for row in rows}


def summed(batches: Sequence[BatchHeader]) -> dict[tuple[int, int], Row]:
    sums = WindowSums(WINDOW_MS)
    sums.add(header_table(batches))
    return rows_of(sums.rows())


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
    topic_partition: TopicPartition = CLICKS
    compacted_to: int = 0

    @property
    def log(self) -> "Log":
        return self

    @property
    def log_end_offset(self) -> int:
        return max(self.batches[-1].next_offset if self.batches else 0, self.log_start_offset)

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

    def expected(self) -> dict[tuple[int, int], Row]:
        return summed(self.batches)


def counter(checkpoints: PartitionCheckpoints, now_ms: Any = lambda: 5) -> BrokerCounter:
    return BrokerCounter("east", WINDOW_MS, checkpoints, now_ms, LIFE)


def tell(broker: BrokerCounter, topic_partition: TopicPartition, headers: Sequence[BatchHeader]) -> None:
    """Tell a counter of batches that were appended now, as a broker does."""
    batches = b"".join(header_bytes(each) + bytes(each.size_bytes - HEADER_SIZE) for each in headers)
    broker.appended(topic_partition, headers, memoryview(batches), broker._clock())


def load(broker: BrokerCounter, log: Any) -> None:
    broker.loaded(log)


def told(*reports: CountReport) -> dict[tuple[int, int], Row]:
    """The rows that hold, of the topic that was reported last: by events/report.py, in any order of the reports.

    Of rows that are not void, that with most records holds; replicas that lack the beginning know less.
    """
    reports = tuple(decode_count_report(encode_count_report(report)) for report in reports)
    named = [report for report in reports if report.topics]
    if not named:
        return {}
    last = max(named, key=lambda report: report.created_ms).topics[0].topic_id
    named = [report for report in named if report.topics[0].topic_id == last]
    claims = [claim for report in named for claim in report.claims]
    best: dict[tuple[int, int], Any] = {}
    for report in named:
        for row in report.rows:
            if any(row["leader_epoch"] < c.leader_epoch and row["revision"] > c.start_offset for c in claims):
                continue
            key = (int(row["start_ms"]), int(row["span_ms"]))
            if key not in best or rank(row) > rank(best[key]):
                best[key] = row
    return rows_of(best.values())


def held(*reports: CountReport) -> dict[int, Row]:
    """The rows of hours that the ledger of an audit holds after these reports, by start."""
    ledger = Ledger()
    for report in reports:
        ledger.apply(decode_count_report(encode_count_report(report)))
    series = ledger.series.get(SeriesKey(Tier.BROKER, "east"))
    found: dict[int, Row] = {}
    for start, table in (series.hours if series is not None else {}).items():
        for row in table.rows[table.rows["revision"] != ABSENT]:
            found[start] = Row(*(int(row[name]) for name in Row._fields))
    return found


def hours_of(rows: Mapping[tuple[int, int], Row]) -> dict[int, Row]:
    """The rows of hours among these."""
    return {start: row for (start, span), row in rows.items() if span == HOUR_MS}


def rank(row: Any) -> tuple[int, int]:
    return int(row["records"]), int(row["revision"])


def with_rows(reports: Iterable[CountReport]) -> list[CountReport]:
    """Reports that say more than that the broker is alive, or how long records took."""
    return [report for report in reports if len(report.rows) or len(report.positions)]


def only(reports: Iterable[CountReport]) -> CountReport:
    (report,) = with_rows(reports)
    return report
