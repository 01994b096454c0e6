"""Reports of every counter of one way, as a test wants them: from producers to files read back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pipeline.audit.events.report import POSITION, ROW, CountReport, LifeSign, ReportedTopic, RowClaim
from pipeline.audit.events.tiers import Counter, Tier
from pipeline.audit.judgement.judge import Judge, Judgement
from pipeline.audit.judgement.verdicts import AuditedHour, Expectations, MirroredTopic, Route
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.ledger.limits import LedgerLimits
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.memory_shelf import MemoryShelf

HOUR = 1_000 * HOUR_MS
GRACE_MS = 60_000
NOW_MS = HOUR + 2 * HOUR_MS
"""Later than the hour and its grace; all counters speak until then."""
PENDING_MAX_MS = 100 * HOUR_MS
EAST = TopicPartition("clicks", 0)
HUB = TopicPartition("clicks", 3)
LAKE = "/lake"


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """Columns of a row."""

    records: int = 10
    first: int = 100
    content: int = 1_234
    columns: Mapping[str, Any] = field(default_factory=dict)

    def row(self, partition: int, start_ms: int, span_ms: int = HOUR_MS, topic: int = 0) -> Any:
        """Return a row: batches of two records, all marked, with sums."""
        row = np.zeros(1, ROW)
        last = self.first + self.records - 1
        values = {
            "topic": topic,
            "partition": partition,
            "start_ms": start_ms,
            "span_ms": span_ms,
            "revision": last + 1,
            "records": self.records,
            "bytes": 100 * self.records,
            "batches": self.records // 2,
            "crc_sum": self.content // 2,
            "content_sum": self.content,
            "place_sum": self.content * 3,
            "header_sum": self.content * 5,
            "has_sums": True,
            "none": self.records // 2,
            "first_offset": self.first,
            "last_offset": last,
            "marked_records": self.records,
            "marked_sum": self.content,
            **self.columns,
        }
        for name, value in values.items():
            row[name] = value
        return row


FULL = Amounts()


def report(
    tier: Tier,
    cluster: str,
    partition: TopicPartition,
    rows: Mapping[int, Amounts],
    *,
    name: str = "",
    instance: str = "",
    process: str = "1",
    topic_id: str = "",
    created_ms: int = NOW_MS,
    revision: int | None = None,
    end: int | None = None,
    start: int = 0,
    counted_from: int = 0,
    epoch: int = 0,
    lost: int = 0,
    claims: Sequence[tuple[int, int]] = (),
    closed_ms: int | None = None,
    interval_ms: int = 10_000,
    is_ended: bool = False,
    has_life: bool = True,
    has_position: bool = True,
    is_leader: bool = True,
    windows: Mapping[int, Amounts] | None = None,
    window_ms: int = 600_000,
) -> CountReport:
    """Return a report about one partition."""
    table = [amounts.row(partition.partition, start_ms) for start_ms, amounts in rows.items()]
    table += [amounts.row(partition.partition, at, window_ms) for at, amounts in (windows or {}).items()]
    all_rows = np.concatenate(table) if table else np.zeros(0, ROW)
    if revision is not None:
        all_rows["revision"] = revision
    all_rows["leader_epoch"] = epoch
    positions = np.zeros(1 if has_position and tier is not Tier.PRODUCER else 0, POSITION)
    if len(positions):
        known = max((int(each.first + each.records) for each in rows.values()), default=0)
        positions["partition"] = partition.partition
        positions["end_offset"] = known if end is None else end
        positions["start_offset"] = start
        positions["counted_from"] = counted_from
        positions["leader_epoch"] = epoch
        positions["is_leader"] = is_leader and tier is Tier.BROKER
        positions["lost_offsets"] = lost
    return CountReport(
        counter=Counter(tier=tier, cluster=cluster, name=name, instance=instance),
        process=instance or process,
        created_ms=created_ms,
        window_ms=window_ms,
        topics=[ReportedTopic(partition.topic, topic_id)],
        rows=all_rows,
        positions=positions,
        claims=[RowClaim(0, partition.partition, *claim) for claim in claims],
        life=LifeSign(
            host="web-1",
            started_ms=HOUR - HOUR_MS,
            interval_ms=interval_ms,
            closed_ms=created_ms if closed_ms is None else closed_ms,
            is_ended=is_ended,
        )
        if has_life
        else None,
    )


@dataclass(frozen=True, kw_only=True)
class WholeWay:
    """Counts of one partition and hour at each stage, None for a stage that says nothing."""

    produced: Amounts | None = FULL
    live: Amounts | None = FULL
    replica: Amounts | None = FULL
    loaded: Amounts | None = FULL
    hour_ms: int = HOUR
    live_options: Mapping[str, Any] = field(default_factory=dict)
    producer_options: Mapping[str, Any] = field(default_factory=dict)
    replica_options: Mapping[str, Any] = field(default_factory=dict)
    load_options: Mapping[str, Any] = field(default_factory=dict)

    def reports(self) -> list[CountReport]:
        """Return a report of each stage."""
        found = []
        for tier, cluster, partition, amounts, options in (
            (Tier.PRODUCER, "east", EAST, self.produced, {"instance": "p1", "revision": 1, **self.producer_options}),
            (Tier.BROKER, "east", EAST, self.live, self.live_options),
            (Tier.BROKER, "hub", HUB, self.replica, self.replica_options),
            (Tier.LOAD, "hub", HUB, self.loaded, {"name": LAKE, **self.load_options}),
        ):
            if amounts is not None:
                found.append(report(tier, cluster, partition, {self.hour_ms: amounts}, **options))
        return found


def signs(created_ms: int = NOW_MS, **options: Any) -> list[CountReport]:
    """Return life signs alone, of the brokers and of the producer."""
    settings: dict[str, Any] = {"created_ms": created_ms, "has_position": False, **options}
    return [
        replace(report(tier, cluster, EAST, {}, instance=instance, **settings), topics=[])
        for tier, cluster, instance in (
            (Tier.BROKER, "east", ""),
            (Tier.BROKER, "hub", ""),
            (Tier.PRODUCER, "east", "p1"),
        )
    ]


EXPECTED = Expectations(
    live_clusters=["east"],
    replica_cluster="hub",
    partitions={("east", "clicks"): 1, ("hub", "clicks"): 4},
    mirrored=[MirroredTopic(cluster="east", topic="clicks", replica_topic="clicks")],
    routes=[Route(cluster="east", source=EAST, replica=HUB)],
    read_to_ms={"east": NOW_MS, "hub": NOW_MS},
)


def judged(
    reports: Sequence[CountReport],
    *,
    now_ms: int = NOW_MS,
    pending_max_ms: int = PENDING_MAX_MS,
    **changes: Any,
) -> Judgement:
    """Return the judgement on some reports, with what is expected, changed by `changes`. All rows are on a shelf."""
    ledger = Ledger(LedgerLimits(rows=0, newest=0), settle_ms=GRACE_MS, shelf=MemoryShelf())
    for one in reports:
        ledger.apply(one)
    ledger.shelve()
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=pending_max_ms)
    judgement = judge.judge(replace(EXPECTED, **changes), now_ms)
    tables = [table for series in ledger.series.values() for table in series.hours.values()]
    assert all(table.is_shelved for table in tables), "a judgement brings no rows back into memory"
    return judgement


def only_hour(reports: Sequence[CountReport], **changes: Any) -> AuditedHour:
    """Return the verdict on the one hour that reports are about."""
    (hour,) = judged(reports, **changes).hours()
    return hour
