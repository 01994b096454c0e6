"""Lives of the processes that count: their newest life signs, and the topics that they named. Pure."""

from dataclasses import dataclass, field

from pipeline.audit.events.report import CountReport, LifeSign

NEVER_HEARD_MS = -(2**62)
MISSED_SIGNS = 3
"""A process is silent if it gave no life sign for so many intervals and a grace."""
BEHIND_MS = 300_000
"""Age at which a report is stored that no delay explains: its clock must be behind."""


@dataclass(slots=True, kw_only=True)
class LifeRecord:
    """Newest life sign of a process. `sign` is None if it never gave any."""

    process: str
    first_ms: int
    """Time of the earliest report."""
    seen_ms: int
    """Time of the report with the sign: what the process says is true up to then."""
    heard_ms: int = NEVER_HEARD_MS
    """Latest time at which any report of the process was stored: the process lived until then."""
    skew_ms: int = 0
    """Time by which the clock of the process was ahead when it gave the sign; negative if behind."""
    sign: LifeSign | None = None
    topics: set[str] = field(default_factory=set)
    has_marked: bool = False
    """True if it counted batches with a mark."""
    has_unmarked: bool = False
    """True if it counted batches without a mark."""

    def take(self, report: CountReport) -> None:
        """Take in a report of the process."""
        self.topics.update(topic.name for topic in report.topics)
        rows = report.rows
        self.has_marked = self.has_marked or bool(rows["marked_records"].any())
        self.has_unmarked = self.has_unmarked or bool((rows["records"] > rows["marked_records"]).any())
        self.first_ms = min(self.first_ms, report.created_ms)
        self.heard_ms = max(self.heard_ms, report.created_ms if report.heard_ms is None else report.heard_ms)
        sign = report.life
        if sign is not None and self._is_newer(sign, report.created_ms):
            self.sign = sign
            self.seen_ms = report.created_ms
            self.skew_ms = report.skew_ms

    def _is_newer(self, sign: LifeSign, created_ms: int) -> bool:
        known = self.sign
        if known is None:
            return True
        if known.is_ended and not sign.is_ended:  # brokers come back under the same id
            return sign.started_ms > self.seen_ms
        if sign.is_ended and not known.is_ended:
            return known.started_ms <= created_ms
        return (sign.is_ended, created_ms, -sign.closed_ms) > (known.is_ended, self.seen_ms, -known.closed_ms)

    @property
    def is_ended(self) -> bool:
        """True if the process ended in order."""
        return self.sign is not None and self.sign.is_ended

    def is_silent(self, now_ms: int, grace_ms: int) -> bool:
        """True if the process gave no life sign for some intervals, and never said that it ended."""
        if self.sign is None or self.sign.is_ended:
            return False
        return now_ms > self.heard_ms + MISSED_SIGNS * self.sign.interval_ms + grace_ms

    def has_closed(self, end_ms: int) -> bool:
        """True if the process has reported all batches of windows that end by `end_ms`."""
        return self.sign is not None and (self.sign.is_ended or self.sign.closed_ms >= end_ms)

    @property
    def is_behind(self) -> bool:
        """True if the clock of the process is so far behind that its word comes too late."""
        return self.skew_ms < -BEHIND_MS

    @property
    def may_mark(self) -> bool:
        """True if batches of the process have marks, as far as is known."""
        return self.has_marked or not self.has_unmarked

    @property
    def host(self) -> str:
        """Host of the process."""
        return self.sign.host if self.sign is not None else "an unknown host"
