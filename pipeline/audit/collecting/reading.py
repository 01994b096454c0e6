"""Progress of reading the audit topic of one cluster, and what was lost of the topic. Pure.

Invariants:

A. `read_to_ms` is the time of a question for the topic's end whose answer the position has reached. So it stands still
   from the moment on at which the cluster does not answer any more, and no answer that is late moves it too far.
B. Events that are missing between two batches were written before the second one. So hours that began before the time
   of the second batch may lack counts. A restarted collector finds the same gap, and says the same.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import UUID

from pipeline.audit.collecting.clocks import StoringClock
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.audit.judgement.sentences import number_text
from pipeline.audit.judgement.verdicts import EventLoss, Witness
from pipeline.records.batch import BatchHeader

NOT_READ_YET: Final = "not read yet"
MAX_QUESTIONS: Final = 1_000
MAX_BLIND: Final = 1_000
"""Processes that cannot see whether their reports are still there, and are told apart."""


class _Question(NamedTuple):
    asked_ms: int
    end: int


def instant(time_ms: int) -> str:
    """Return ISO 8601 in UTC; milliseconds for a time that the calendar does not have."""
    try:
        time = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return f"{time.year:04}-{time:%m-%dT%H:%M:%S}Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingProgress:
    """Progress of reading one cluster at one moment; see `ReadingState`."""

    position: int
    lag: int | None
    is_complete: bool
    unreadable: int
    problem: str | None
    read_to_ms: int | None


@dataclass(slots=True)
class ReadingState:
    """Progress of reading one cluster's audit topic. `error`: why the topic cannot be read at present."""

    cluster: str
    position: int = 0
    """Events before this offset were read and applied."""
    end: int | None = None
    """Log end offset of the topic in the last answer; None if it is not known."""
    read_to_ms: int | None = None
    """Time by the collector's clock for which all events that the topic then held were read (invariant A)."""
    is_complete: bool = False
    """True if all events were read that the topic held at the answer before. Newer events do not change that."""
    unreadable: int = 0
    """Number of records that are no monitoring events, or are of another version."""
    error: str | None = NOT_READ_YET
    topic_id: UUID | None = None
    """Id of the topic that `position` belongs to; None if it is not known."""
    leader_epoch: int | None = None
    """Leader epoch of the last event that was read."""
    losses: dict[str, EventLoss] = field(default_factory=dict)
    """Losses of events by reason. The latest of each reason holds, which covers those before it."""
    open_gap: str | None = None
    """What is missing before the next event that will be read. Nobody knows yet up to when."""
    clock: StoringClock = field(init=False)
    """The clock of the brokers that store the events."""
    _applied_clock: StoringClock = field(init=False)
    """The clock as the events before `position` show it."""
    _questions: deque[_Question] = field(default_factory=deque)
    _blind: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By process that cannot see whether its reports are still there: number of these, and time of its newest sign."""

    def __post_init__(self) -> None:
        self.clock = StoringClock(self.cluster)
        self._applied_clock = StoringClock(self.cluster)

    @property
    def lag(self) -> int | None:
        """Number of events that are left to read; None if it is not known."""
        return None if self.end is None else max(0, self.end - self.position)

    @property
    def problem(self) -> str | None:
        """The reason why no hour of this cluster can be called exact; None if there is none."""
        if self.error is not None:
            return self.error
        if self.open_gap is not None:
            return self.open_gap
        return None if self.is_complete else f"{number_text(self.lag or 0, 'event')} not read yet"

    @property
    def progress(self) -> ReadingProgress:
        """Value of what is known now."""
        return ReadingProgress(
            position=self.position,
            lag=self.lag,
            is_complete=self.is_complete,
            unreadable=self.unreadable,
            problem=self.problem,
            read_to_ms=self.read_to_ms,
        )

    def ends_at(self, end: int, asked_ms: int) -> None:
        """Take over the log end offset that the topic answered to a question of time `asked_ms`."""
        self.is_complete = self.open_gap is None and self.position >= (end if self.end is None else self.end)
        self.end = end
        self.error = None
        if len(self._questions) < MAX_QUESTIONS:  # the oldest ones are reached first: a reader far behind gets on
            self._questions.append(_Question(asked_ms, end))
        self._note_position()

    def moves_to(self, position: int) -> None:
        """Note that all events before this offset were applied."""
        self.position = position
        self._note_position()

    def moves_past(self, header: BatchHeader) -> None:
        """Note that all events up to the end of a batch were applied."""
        self.leader_epoch = header.partition_leader_epoch
        self.moves_to(header.next_offset)

    def _note_position(self) -> None:
        while self._questions and self._questions[0].end <= self.position:
            asked_ms = self._questions.popleft().asked_ms
            if self.open_gap is None:
                self.read_to_ms = asked_ms  # also if the clock was set back

    def has_applied(self) -> None:
        """Note that all events whose times the clock has taken in were applied."""
        self._applied_clock = replace(self.clock)

    def to_continue(self) -> "ReadingState":
        """Return a state from which another process can read on. What the cluster answered is asked again."""
        state = ReadingState(
            self.cluster,
            position=self.position,
            unreadable=self.unreadable,
            topic_id=self.topic_id,
            leader_epoch=self.leader_epoch,
            losses=dict(self.losses),
            open_gap=self.open_gap,
            _blind=dict(self._blind),
        )
        state.clock, state._applied_clock = replace(self._applied_clock), replace(self._applied_clock)
        return state

    def fail(self, reason: str) -> None:
        """Note that the topic cannot be read."""
        self.end, self.is_complete, self.error = None, False, reason
        self._questions.clear()

    def follow(self, headers: Iterable[BatchHeader], position: int, now_ms: int) -> None:
        """Note the gaps in batches that continue at `position` (invariant B)."""
        for header in headers:
            if header.next_offset <= position:
                continue
            if header.base_offset > position:
                self.lacks(position, header.base_offset)
            if header.record_count <= header.last_offset_delta:
                self.lacks(max(position, header.base_offset), header.next_offset)
            self._close_gap(header.max_timestamp, now_ms)
            position = header.next_offset

    def lacks(self, first: int, end: int) -> None:
        """Note that events of these offsets are missing, before an event that is read next."""
        self.open_gap = (
            f"events {first} to {end - 1} of its topic {AUDIT_TOPIC} are gone: retention, DeleteRecords, compaction "
            f"or damage; give the topic cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1"
        )
        self.is_complete = False

    def _close_gap(self, written_ms: int, now_ms: int) -> None:
        if self.open_gap is not None:
            self.loses(self.open_gap, min(written_ms, now_ms), kind="gap")
            self.open_gap = None

    def told_of_loss(self, written_ms: int, now_ms: int) -> None:
        """Note that an event written at `written_ms` says that events before it are gone."""
        self.loses("a counter found that its earlier reports are gone", min(written_ms, now_ms), kind="told")

    def told_of_sight(self, process: str, unseen: int, created_ms: int, written_ms: int, now_ms: int) -> None:
        """Note whether a process could read back its earlier reports: `unseen` of them could not be read.

        Reports that come later than newer ones of the process say nothing.
        """
        known, newest_ms = self._blind.get(process, (0, created_ms))
        unseen = max(0, unseen)
        if created_ms < newest_ms or unseen == known == 0:
            return
        is_bounded = process in self._blind or len(self._blind) < MAX_BLIND
        kind = f"unseen {process}" if is_bounded else "unseen"
        if unseen == 0:
            del self._blind[process]
            self.losses.pop(kind, None)
            return
        if is_bounded:
            self._blind[process] = unseen, created_ms
        if unseen > known:
            reason = (
                f"the counter of {process} could not see whether its reports are still there; allow it to read them"
            )
            self.loses(reason, min(written_ms, now_ms), kind=kind)

    def loses(self, reason: str, before_ms: int, *, kind: str) -> None:
        """Note a loss of events that were written before `before_ms`."""
        known = self.losses.get(kind)
        if known is not None and known.before_ms > before_ms:
            before_ms = known.before_ms
        reason = f"{reason}. What was counted before {instant(before_ms)} may be missing"
        witness = Witness(name=f"audit topic of {self.cluster}", reason=reason, cluster=self.cluster)
        self.losses[kind] = EventLoss(cluster=self.cluster, before_ms=before_ms, witness=witness)
