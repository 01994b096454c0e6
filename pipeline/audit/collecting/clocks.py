"""Times of reports as far as they can be believed, whatever clocks counters and brokers have. Pure.

A report bears the time of its counter's clock, its batch that of the broker which stored it (`_audit` has
LogAppendTime), and the collector has a clock of its own.

Invariants:

A. A report's word counts for no later time than that at which it was stored, and no later than the collector's own
   time. So a counter whose clock is ahead vouches for no hour to come.
B. A batch that was stored later than now, by its broker's clock, was stored at an unknown time. Its reports count for
   times that earlier batches had reached. A restarted collector says the same, until the clock is right again.
C. A report was heard of at the latest of its times, so a clock that is behind makes no process look dead.
D. Of the brokers' clock and the collector's, nobody can say which one is wrong. While both differ, there is a witness.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pipeline.audit.events.older import OlderEvent
from pipeline.audit.events.report import CountReport
from pipeline.audit.judgement.missing_words import name_of_clock
from pipeline.audit.judgement.times import duration
from pipeline.audit.judgement.verdicts import Witness
from pipeline.records.batch import BatchHeader, TimestampType

TOLERANCE_MS: Final = 60_000
"""Difference of two clocks that is no fault."""
LATE_MS: Final = 300_000
"""Age of an event from which on a clock must be behind: replication and retries take less."""
SENT_WITHIN_MS: Final = 30_000
"""Time within which a report is stored or given up (the reporters' `delivery.timeout.ms`)."""


class StoredAt(NamedTuple):
    """Time at which a batch of events was stored, as far as it is known."""

    stamp_ms: int | None
    """Time by the broker's clock; None if brokers of the cluster do not stamp."""
    now_ms: int
    """Time by the collector's clock, after the batch was read."""
    floor_ms: int
    """Time that earlier batches had reached (invariant B)."""


def believed_report(report: CountReport, at: StoredAt) -> CountReport:
    """Return a report with the times that can be believed (invariants A to C)."""
    limit_ms = _limit(report.created_ms, at)
    skew_ms = report.created_ms - _stored(at)
    latest_ms = report.created_ms if at.stamp_ms is None else max(report.created_ms, at.stamp_ms)
    life = report.life
    if life is not None and max(life.closed_ms, life.started_ms) > limit_ms:
        life = replace(life, closed_ms=min(life.closed_ms, limit_ms), started_ms=min(life.started_ms, limit_ms))
    return replace(
        report,
        created_ms=min(report.created_ms, limit_ms),
        heard_ms=min(latest_ms, at.now_ms),
        skew_ms=skew_ms if at.stamp_ms is not None or skew_ms > 0 else 0,
        life=life,
    )


def believed_older_event(event: OlderEvent, at: StoredAt) -> OlderEvent:
    """Return an event of version 2 with the time that can be believed."""
    return replace(event, created_ms=min(event.created_ms, _limit(event.created_ms, at)))


def _stored(at: StoredAt) -> int:
    return at.now_ms if at.stamp_ms is None else min(at.stamp_ms, at.now_ms)


def _limit(created_ms: int, at: StoredAt) -> int:
    """Return the latest time for which a report's word counts."""
    stored_ms = _stored(at)
    claimed_ms = created_ms if at.stamp_ms is None else at.stamp_ms
    if claimed_ms > at.now_ms + TOLERANCE_MS:
        stored_ms = min(stored_ms, at.floor_ms)  # invariant B
    # The report may have been on its way: it was true before it was stored.
    return stored_ms - SENT_WITHIN_MS if created_ms > stored_ms + TOLERANCE_MS else stored_ms


@dataclass(slots=True)
class StoringClock:
    """The clock of the brokers that store the events of one cluster, beside that of the collector."""

    cluster: str
    floor_ms: int = 0
    """Latest time at which a batch was stored, of those that can be."""
    witness: Witness | None = None
    """Says that the clocks differ; None if they do not, as far as it is known (invariant D)."""

    def stored_at(self, header: BatchHeader, now_ms: int, after_ms: int | None) -> StoredAt:
        """Take in a batch that was read at `now_ms`; return when it was stored.

        `after_ms`: a time by the collector's clock at which the batch was not there yet; None if none is known.
        """
        time_ms = header.max_timestamp
        is_stamped = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        at = StoredAt(time_ms if is_stamped else None, now_ms, self.floor_ms)
        if time_ms <= now_ms + TOLERANCE_MS:
            self.floor_ms = max(self.floor_ms, min(time_ms, now_ms))
        if not is_stamped:
            return at
        if time_ms > now_ms + TOLERANCE_MS:
            self._differ(time_ms - now_ms, "ahead of", 2 * now_ms - time_ms)
        elif after_ms is not None and time_ms < after_ms - LATE_MS:
            self._differ(after_ms - time_ms, "behind", time_ms)
        elif time_ms > now_ms - LATE_MS:
            self.witness = None  # a batch that may have been stored just now
        return at

    def _differ(self, by_ms: int, how: str, since_ms: int) -> None:
        known = self.witness
        if known is not None and known.since_ms is not None:
            since_ms = min(since_ms, known.since_ms)
        self.witness = Witness(
            name=name_of_clock(self.cluster),
            reason=f"it is {duration(by_ms)} {how} the clock of the audit; set the one that is wrong",
            cluster=self.cluster,
            since_ms=since_ms,
        )
