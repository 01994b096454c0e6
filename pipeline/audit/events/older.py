"""Monitoring events of version 2, which older programs wrote: counts of one partition by window. Pure.

Invariants of version 2:
A. The counts of an event are cumulative: all batches of the window up to `revision`.
B. Of two events of a source and window the higher revision holds; of brokers' events the one with more records.
C. A leader claims its epoch: reports of lower epochs beyond the claim's offset are void.
D. A recreated topic is another source: `instance` is the topic's id.

The ledger knows hours. So the windows of each source are kept here, and each event gives rows of whole hours.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.audit.events.encoding import AuditMessageError
from pipeline.audit.events.report import POSITION, ROW, CountReport, ReportedTopic, RowClaim, Rows
from pipeline.audit.events.tiers import Counter, Tier
from pipeline.model import TopicPartition
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS, NOTHING, CodecCounts, Counts, window_start

OLDER_VERSION: Final = 2
OLDER_PROCESS: Final = ""
"""Process of all reports that are made from events of version 2: these events do not name it."""
_OLDER_TIERS: Final = (Tier.PRODUCER, Tier.BROKER, Tier.LOAD)


class OlderSource(NamedTuple):
    """A counter of a partition. `instance` is the id of a producer's life or of a broker's topic; empty for loads."""

    tier: Tier
    cluster: str
    partition: TopicPartition
    instance: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderEvent:
    """An event of version 2. `claims` are pairs of leader epoch and start offset."""

    source: OlderSource
    revision: int
    created_ms: int
    window_ms: int
    leader_epoch: int = 0
    claims: tuple[tuple[int, int], ...] = ()
    windows: Mapping[int, Counts]
    quarantined: Mapping[int, int] = field(default_factory=dict)
    lost_offsets: int = 0


def decode_older_event(value: bytes) -> OlderEvent:
    """Return the event in a record's value. Raises AuditMessageError."""
    try:
        document = json.loads(value)
        if document["version"] != OLDER_VERSION:
            raise AuditMessageError(f"monitoring event of version {document['version']}; expected {OLDER_VERSION}")
        return _event(document)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise AuditMessageError(f"not a monitoring event: {error!r}") from error


def _event(document: Mapping[str, Any]) -> OlderEvent:
    codecs = {
        int(start): CodecCounts(_amount(header_sum), tuple(map(_amount, batches)))
        for start, header_sum, *batches in document.get("codecs", ())
        if len(batches) == len(Codec)
    }
    tier = Tier(document["tier"])
    partition = int(document["partition"])
    window_ms = int(document["window_ms"])
    if tier not in _OLDER_TIERS or not 0 <= partition < 2**31 or window_ms < 1 or HOUR_MS % window_ms:
        raise ValueError(f"tier {tier}, partition {partition}, windows of {window_ms} ms")
    return OlderEvent(
        source=OlderSource(
            tier,
            str(document["cluster"]),
            TopicPartition(str(document["topic"]), partition),
            str(document["instance"]),
        ),
        leader_epoch=_amount(document["leader_epoch"], 2**31),
        claims=tuple((_amount(epoch, 2**31), _amount(start)) for epoch, start in document["claims"]),
        revision=_amount(document["revision"]),
        created_ms=_amount(document["created_ms"]),
        window_ms=window_ms,
        windows={
            _start(start, window_ms): Counts(
                _amount(records), _amount(size), _amount(batches), _amount(crc_sum, 2**64), codecs.get(int(start))
            )
            for start, records, size, batches, crc_sum in document["windows"]
        },
        quarantined={int(start): _amount(records) for start, records in document.get("quarantined", ())},
        lost_offsets=_amount(document.get("lost_offsets", 0)),
    )


def _amount(value: Any, bound: int = 2**63) -> int:
    number = int(value)
    if not 0 <= number < bound:
        raise ValueError(f"{number} is out of bounds")
    return number


def _start(value: Any, window_ms: int) -> int:
    start = int(value)
    if start % window_ms or abs(start) > 2**61:
        raise ValueError(f"{start} is not the start of a window")
    return start


@dataclass(frozen=True, slots=True)
class _Window:
    counts: Counts
    revision: int
    created_ms: int
    leader_epoch: int
    quarantined: int

    def replaces(self, known: "_Window | None", tier: Tier) -> bool:
        """True if this window holds, and not the known one (invariant B)."""
        if known is None:
            return True
        mine, other = self.counts, known.counts
        if tier is Tier.BROKER and mine.records != other.records:
            return mine.records > other.records
        return (self.revision, self.created_ms, mine.records, mine.crc_sum, self.quarantined) > (
            (known.revision, known.created_ms, other.records, other.crc_sum, known.quarantined)
        )


@dataclass(slots=True)
class _Windows:
    """Windows of one source, by hour and start, and its claims: those that void more than all others, rising."""

    hours: dict[int, dict[int, _Window]] = field(default_factory=dict)
    claims: list[tuple[int, int]] = field(default_factory=list)

    def void(self, claims: Sequence[tuple[int, int]]) -> set[int]:
        """Take in claims; return the hours that lost windows (invariant C)."""
        new = [claim for claim in claims if not self.is_void(claim[0] - 1, claim[1] + 1)]
        self.claims = sorted({*self.claims, *new})
        changed = set()
        for hour, windows in self.hours.items() if new else ():
            void = [start for start, window in windows.items() if self.is_void(window.leader_epoch, window.revision)]
            for start in void:
                del windows[start]
                changed.add(hour)
        return changed

    def is_void(self, leader_epoch: int, revision: int) -> bool:
        """True if a leader of a later epoch went on from an offset below `revision`."""
        return any(epoch > leader_epoch and start < revision for epoch, start in self.claims)


class OlderCounts:
    """Windows of all sources of version 2, and the hours that they give."""

    def __init__(self) -> None:
        self._sources: dict[OlderSource, _Windows] = {}

    def apply(self, event: OlderEvent) -> list[CountReport]:
        """Take in an event; return reports with the hours that changed, and how far was counted."""
        source = self._sources.setdefault(event.source, _Windows())
        changed = source.void(event.claims)
        if not source.is_void(event.leader_epoch, event.revision):
            for start, counts in event.windows.items():
                hour = window_start(start, HOUR_MS)
                windows = source.hours.setdefault(hour, {})
                window = _Window(
                    counts, event.revision, event.created_ms, event.leader_epoch, event.quarantined.get(start, 0)
                )
                if window.replaces(windows.get(start), event.source.tier):
                    windows[start] = window
                    changed.add(hour)
        hours = [_hour_report(event, hour, list(source.hours[hour].values())) for hour in sorted(changed)]
        return [_position_report(event), *hours]


def _report_of(event: OlderEvent, created_ms: int) -> CountReport:
    source = event.source
    has_lives = source.tier.has_lives
    instance = source.instance if has_lives else ""
    return CountReport(
        counter=Counter(tier=source.tier, cluster=source.cluster, instance=instance),
        process=instance or OLDER_PROCESS,
        created_ms=created_ms,
        window_ms=HOUR_MS,
        topics=[ReportedTopic(source.partition.topic, "" if has_lives else source.instance)],
    )


def _position_report(event: OlderEvent) -> CountReport:
    """Return what an event says beside its windows. The replicas of version 2 do not say which one leads."""
    report = _report_of(event, event.created_ms)
    partition = event.source.partition.partition
    claims = [RowClaim(0, partition, epoch, start_offset) for epoch, start_offset in event.claims]
    if event.source.tier.has_lives:
        return report
    positions = np.zeros(1, POSITION)
    positions["partition"] = partition
    positions["end_offset"] = event.revision
    positions["start_offset"] = -1
    positions["leader_epoch"] = event.leader_epoch
    positions["is_leader"] = True
    positions["lost_offsets"] = event.lost_offsets
    return replace(report, claims=claims, positions=positions)


def _hour_report(event: OlderEvent, hour: int, windows: Sequence[_Window]) -> CountReport:
    """Return the sum of an hour's windows. Its time is that of the newest window, or of the event if none is left."""
    rows: Rows = np.zeros(1, ROW)
    newest = max(windows, key=lambda window: window.revision, default=_Window(NOTHING, 0, event.created_ms, 0, 0))
    counts = sum((window.counts for window in windows), NOTHING)
    rows["partition"] = event.source.partition.partition
    rows["start_ms"] = hour
    rows["span_ms"] = HOUR_MS
    rows["revision"] = newest.revision
    rows["leader_epoch"] = newest.leader_epoch
    rows["records"] = counts.records
    rows["bytes"] = counts.bytes
    rows["batches"] = counts.batches
    rows["crc_sum"] = counts.crc_sum
    rows["first_offset"] = rows["last_offset"] = -1
    rows["quarantined"] = sum(window.quarantined for window in windows)
    if counts.codecs is not None:
        rows["header_sum"] = counts.codecs.header_sum
        for codec, batches in zip(Codec, counts.codecs.batches, strict=True):
            rows[codec.name.lower()] = batches
    return replace(_report_of(event, max((w.created_ms for w in windows), default=event.created_ms)), rows=rows)
