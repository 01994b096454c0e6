"""Counts of an earlier reader of headers, read back from the audit topic, so that another one goes on from there.

Invariants (of `header_counter.py`): rows and position of a partition are in one record. A claim that makes rows void is
in one record with all rows that replace them. So the highest position that is not void, with the highest rows, is what
the reader had counted. Records may come twice or late, and reports of any number of readers may be mixed. A row is
reported when it changes, so this holds of a whole topic alone: if records of it are gone, nothing is known.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import trio

from pipeline.audit.counting.header_counter import ReportedCounts
from pipeline.audit.events.encoding import AuditMessageError, decode_count_report
from pipeline.audit.events.report import OLDER, ROW, CountReport
from pipeline.audit.events.tiers import AUDIT_TOPIC, Tier
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, OffsetReset
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.opening import each_record
from pipeline.diagnostics import get_logger
from pipeline.errors import DeadlineExceededError
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.records.batch import iterate_headers
from pipeline.records.record import Record
from pipeline.records.tally import HOUR_MS

EVENTS = TopicPartition(AUDIT_TOPIC, 0)

logger = get_logger(__name__)


class NamedLog(NamedTuple):
    """A partition of one topic that ever had its name."""

    partition: TopicPartition
    topic_id: str


@dataclass(slots=True)
class _FoundCounts:
    rows: dict[tuple[int, int], np.void] = field(default_factory=dict)
    """By span and start."""
    position: np.void | None = None
    claims: list[tuple[int, int]] = field(default_factory=list)
    """Leader epochs and their start offsets."""

    def is_void(self, epoch: int, offset: int) -> bool:
        """Return True if a later epoch began before the offset."""
        return any(claimed > epoch and start < offset for claimed, start in self.claims)


class FoundReports:
    """Reports of readers of one cluster, as they are found."""

    def __init__(self, cluster: str, window_ms: int) -> None:
        self._cluster = cluster
        self._window_ms = window_ms
        self._key = f"{Tier.BROKER}/{cluster}/".encode()
        self._found: dict[NamedLog, _FoundCounts] = {}

    def take(self, record: Record) -> None:
        """Take in a record of the audit topic. What is no report of a reader is left out."""
        if record.value is None or not (record.key or b"").startswith(self._key):
            return
        try:
            report = decode_count_report(record.value)
        except AuditMessageError:
            return
        if report.counter.tier is Tier.BROKER and report.counter.cluster == self._cluster:
            self.apply(report)

    def apply(self, report: CountReport) -> None:
        """Take in a report."""
        if report.window_ms != self._window_ms:
            return
        for claim in report.claims:
            found = self._of(report, claim.topic, claim.partition)
            found.claims.append((claim.leader_epoch, claim.start_offset))
            position = found.position
            if position is not None and found.is_void(int(position["leader_epoch"]), int(position["end_offset"])):
                found.position, found.rows = None, {}
        for row in report.rows:
            found = self._of(report, row["topic"], row["partition"])
            key = int(row["span_ms"]), int(row["start_ms"])
            known = found.rows.get(key)
            if found.is_void(int(row["leader_epoch"]), int(row["revision"])):
                continue
            if known is None or row["revision"] >= known["revision"]:
                found.rows[key] = row
        for position in report.positions:
            found = self._of(report, position["topic"], position["partition"])
            if found.is_void(int(position["leader_epoch"]), int(position["end_offset"])):
                continue
            if found.position is None or position["end_offset"] >= found.position["end_offset"]:
                found.position = position

    def forget(self) -> None:
        """Forget all that was found."""
        self._found.clear()

    def _of(self, report: CountReport, topic: int, partition: int) -> _FoundCounts:
        named = report.topics[topic]
        return self._found.setdefault(
            NamedLog(TopicPartition(named.name, int(partition)), named.topic_id), _FoundCounts()
        )

    def take_counts(self, partition: TopicPartition, topic_id: str) -> ReportedCounts | None:
        """Return what was counted of a partition, and forget it; None if nothing was reported."""
        found = self._found.pop(NamedLog(partition, topic_id), None)
        if found is None or found.position is None:
            return None
        older = found.rows.get((HOUR_MS, OLDER))
        rows = np.zeros(len(found.rows), ROW)
        for index, row in enumerate(found.rows.values()):
            rows[index] = row
        if older is not None:  # rows of hours that were folded since are in the row of older hours
            rows = rows[(rows["start_ms"] == OLDER) | (rows["start_ms"] >= older["until_ms"])]
            if not (rows["start_ms"] != OLDER).any():
                return None  # no counter folds all hours
        return ReportedCounts(
            topic_id=topic_id,
            end_offset=int(found.position["end_offset"]),
            counted_from=int(found.position["counted_from"]),
            leader_epoch=int(found.position["leader_epoch"]),
            rows=rows,
        )


async def read_back(cluster: Cluster, found: FoundReports, *, timeout_s: float) -> None:
    """Read the audit topic from its beginning to its present end. Nothing is found if some of its records are gone.

    Raises KafkaError, NetworkError, CorruptBatchError; DeadlineExceededError if nothing comes for `timeout_s`.
    """
    view = await cluster.fetch_all_topics(timeout_s=timeout_s)
    if AUDIT_TOPIC not in view.topics:
        return
    start = (await list_offsets(cluster, {EVENTS: EARLIEST}, timeout_s=timeout_s))[EVENTS].offset
    end = (await list_offsets(cluster, {EVENTS: LATEST}, timeout_s=timeout_s))[EVENTS].offset
    config = ConsumerConfig(auto_offset_reset=OffsetReset.EARLIEST)
    async with open_consumer(cluster, config) as consumer:
        consumer.assign({EVENTS: start})
        last_at = trio.current_time()
        follows, is_whole = 0, True
        while consumer.position(EVENTS) < end:
            for batches in await consumer.poll_batches():
                for _, header in iterate_headers(batches.data):
                    is_whole &= header.base_offset <= follows and header.record_count > header.last_offset_delta
                    follows = header.next_offset
                await each_record(batches, found.take)
                last_at = trio.current_time()
            if trio.current_time() > last_at + timeout_s:
                raise DeadlineExceededError(f"no events of {AUDIT_TOPIC} within {timeout_s:.0f} s")
    if not is_whole or (start == end > 0):
        logger.warning(
            "audit_reports_gone",
            help="some records of _audit are gone, so all is counted again from the log starts: give the topic "
            "cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1",
        )
        found.forget()
