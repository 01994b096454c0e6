"""Watermarks: up to when the windows of a topic are complete. Pure.

Hours that are complete raise the watermark to their ends. Within the first hour that is not complete yet, the sums of
all windows before a boundary are compared: the row of the hour without the rows of later windows. So only the newest
windows need rows of their own. A watermark never passes the word of any party that the hour needs.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.audit.events.report import OLDER, Rows
from pipeline.audit.judgement.cells import of_table, rows_of
from pipeline.audit.judgement.hour_cells import HourCells, compare_hour
from pipeline.audit.judgement.hour_verdicts import HourVerdicts, TopicHour, is_settled
from pipeline.audit.judgement.times import iso_time
from pipeline.audit.judgement.topic_hours import unreported_producers
from pipeline.audit.judgement.verdicts import Stage, Status, Watermark
from pipeline.audit.judgement.words import Words
from pipeline.audit.ledger.keys import Int64s
from pipeline.audit.ledger.ledger import Ledger, Series
from pipeline.audit.ledger.position_table import NEVER_MS
from pipeline.audit.ledger.row_table import WINDOW_ROW, Mask
from pipeline.records.tally import HOUR_MS

_COMPLETE = (Status.EXACT, Status.RECOMPRESSED, Status.EXPLAINED)
_FORGOTTEN = (
    "its records differed, nothing explained that, and the audit has no room any more for an hour that is so old"
)
_SUMMED = ("records", "sum", "marked_records", "marked_sum")


@dataclass(frozen=True, slots=True)
class HoursLeft:
    """Topics of one hour that are not done: that may be judged otherwise by waiting, and that are not complete."""

    unsettled: frozenset[int]
    incomplete: Mapping[int, TopicHour]
    plain: HourVerdicts | None
    """The verdicts, if plain topics are not complete either."""

    @classmethod
    def of(cls, verdicts: HourVerdicts) -> "HoursLeft":
        """Return what is left of the verdicts of an hour."""
        others = verdicts.others
        return cls(
            frozenset(topic for topic, verdict in others.items() if not is_settled(verdict)),
            {topic: verdict for topic, verdict in others.items() if verdict.status not in _COMPLETE},
            verdicts if any(stamp.status not in _COMPLETE for stamp in verdicts.stamps.values()) else None,
        )

    def open_among(self, topics: set[int]) -> Iterator[tuple[int, TopicHour]]:
        """Yield those of some topics that are not complete, with their verdicts."""
        yield from ((topic, self.incomplete[topic]) for topic in topics & self.incomplete.keys())
        if self.plain is not None:
            for topic in topics - self.plain.others.keys():
                verdict = self.plain.get(topic)
                if verdict is not None and verdict.status not in _COMPLETE:
                    yield topic, verdict


@dataclass(frozen=True, slots=True)
class _Frontier:
    """Hours of a topic: the first one, and the first one that is not complete, if there is one."""

    first_ms: int
    open_ms: int | None = None
    waits_for: str = ""


def watermarks_of(
    ledger: Ledger, words: Sequence[Words], first_ms: Mapping[int, int], left: Mapping[int, HoursLeft]
) -> list[Watermark]:
    """Return the watermark of each topic that has counts, sorted by topic. `first_ms` is its first hour."""
    frontiers = _frontiers(first_ms, left)
    frontiers |= {
        topic: _Frontier(frontiers[topic].first_ms, hour_ms, f"hour {iso_time(hour_ms)}: {_FORGOTTEN}")
        for topic, hour_ms in ledger.differing_ms.items()
        if topic in frontiers
    }
    limits = {topic: _limit(words, topic) for topic in frontiers}
    reached = _reached_in_hours(words, frontiers, limits)
    found = []
    for topic, frontier in frontiers.items():
        limit_ms, why = limits[topic]
        complete_ms, waits_for = limit_ms, why
        if frontier.open_ms is not None:
            inside_ms = reached.get(topic, frontier.open_ms)
            if inside_ms < limit_ms:
                complete_ms, waits_for = inside_ms, frontier.waits_for
        is_none = complete_ms <= frontier.first_ms
        found.append(
            Watermark(
                topic=ledger.topics.names[topic], complete_ms=None if is_none else complete_ms, waits_for=waits_for
            )
        )
    return sorted(found, key=lambda watermark: watermark.topic)


def _frontiers(first_ms: Mapping[int, int], left: Mapping[int, HoursLeft]) -> dict[int, _Frontier]:
    found = {topic: _Frontier(start_ms) for topic, start_ms in first_ms.items()}
    complete = set(found)
    for hour_ms in sorted(hour for hour in left if hour != OLDER):
        if not complete:
            break
        for topic, verdict in list(left[hour_ms].open_among(complete)):
            found[topic] = _Frontier(found[topic].first_ms, hour_ms, _waits_for(hour_ms, verdict))
            complete.discard(topic)
    return found


def _waits_for(hour_ms: int, verdict: TopicHour) -> str:
    for finding in verdict.findings:
        if finding.status is verdict.status:
            return finding.text
    reason = str(verdict.missing[0]) if verdict.missing else "records are under way"
    return f"hour {iso_time(hour_ms)}: {reason}"


def _limit(words: Sequence[Words], topic: int) -> tuple[int, str]:
    """Return the earliest word of all parties, at the start of a window, and whose word it is."""
    limits = [limit for each in words if each.has_topic(topic) for limit in each.limits(topic)]
    limit_ms, why = min(limits, default=(NEVER_MS, "no live cluster has the topic"))
    window_ms = max((each.window_ms(topic) for each in words), default=HOUR_MS)
    return limit_ms - limit_ms % window_ms if limit_ms > NEVER_MS else NEVER_MS, why


def _reached_in_hours(
    words: Sequence[Words], frontiers: Mapping[int, _Frontier], limits: Mapping[int, tuple[int, str]]
) -> dict[int, int]:
    """Return how far the windows of each topic are complete within its first hour that is not."""
    topics: dict[int, set[int]] = defaultdict(set)
    for topic, frontier in frontiers.items():
        if frontier.open_ms is not None and limits[topic][0] > frontier.open_ms:
            topics[frontier.open_ms].add(topic)
    reached: dict[int, int] = {}
    for hour_ms, of_hour in topics.items():
        for each in words:
            for some in _portions(each, hour_ms, of_hour):
                hour = compare_hour(each, hour_ms, some)
                for topic, boundary_ms in _reached_in(hour, some, limits) if hour is not None else ():
                    reached[topic] = min(reached.get(topic, boundary_ms), boundary_ms)
                del hour  # else it stays while the next portion is compared
    return reached


def _portions(words: Words, hour_ms: int, topics: set[int]) -> Iterator[set[int]]:
    """Return topics in portions of bounded numbers of cells. Topics without cells come with the first portion."""
    portions = [topics if portion is None else portion for portion in words.way.portions_at(hour_ms, topics)]
    for number, portion in enumerate(portions):
        yield topics.difference(*portions[1:]) if number == 0 else portion


def _reached_in(hour: HourCells, topics: set[int], limits: Mapping[int, tuple[int, str]]) -> Iterator[tuple[int, int]]:
    """Yield topics with how far their windows are complete within an hour of one live cluster."""
    for topic, boundary_ms in _Boundaries(hour).reached({topic: limits[topic][0] for topic in topics}).items():
        of_topic = hour.topics == topic
        doubtful = (
            hour.is_deleted[of_topic].any()
            or hour.is_ahead_of_live(of_topic)
            or topic in hour.sent_to_replica
            or any(mask[of_topic].any() for _, mask in hour.doubtful)
        )
        doubtful = doubtful or unreported_producers(hour, topic)
        if doubtful or any(word.is_lost for word in hour.words.missing(topic, hour.hour_ms, boundary_ms)):
            boundary_ms = hour.hour_ms
        yield topic, boundary_ms


class _Boundaries:
    """Sums of all windows of an hour before a boundary, for each stage."""

    def __init__(self, hour: HourCells) -> None:
        self._hour = hour
        self._stages = [stage for stage in hour.stages if stage.stage.tier not in ("mirrored", "stored")]
        spans = {span for stage in self._stages for series in stage.series for span, _ in series.windows}
        self._span_ms = max(spans, default=HOUR_MS)

    def reached(self, until_ms: Mapping[int, int]) -> dict[int, int]:
        """Return by topic the last boundary, not after `until_ms`, before which all stages are equal."""
        hour_ms = self._hour.hour_ms
        result = dict.fromkeys(until_ms, hour_ms)
        left = set(until_ms)
        for boundary_ms in range(hour_ms + HOUR_MS, hour_ms, -self._span_ms):
            candidates = {topic for topic in left if until_ms[topic] >= boundary_ms}
            if not candidates or not self._has_rows_from(boundary_ms):
                continue
            equal = candidates - self._unequal(boundary_ms)
            result |= dict.fromkeys(equal, boundary_ms)
            left -= equal
        return result

    def _has_rows_from(self, boundary_ms: int) -> bool:
        """True if each stage still has the rows of all windows at or after the boundary."""
        for series in (series for stage in self._stages for series in stage.series):
            starts = [start for span, start in series.windows if span]
            if starts and len(starts) >= series.windows_kept and min(starts) > boundary_ms:
                return False
        return True

    def _unequal(self, boundary_ms: int) -> set[int]:
        """Return the topics of which some stages differ before the boundary."""
        sums: dict[Stage, Rows] = {}
        unequal = np.zeros(len(self._hour.cells), np.bool_)
        for edge in self._hour.edges:
            if edge.at.stage.tier == "stored":
                continue
            for stage in (edge.before, edge.at):
                if stage.stage not in sums:
                    sums[stage.stage] = self._before(stage.series, stage.cells, boundary_ms)
            before, at = sums[edge.before.stage], sums[edge.at.stage]
            differs = _differ_from_live(before, at) if edge.before.stage.tier == "produced" else _differ(before, at)
            unequal |= differs & edge.at.is_expected & edge.before.is_expected
        return set(np.unique(self._hour.topics[unequal]).tolist())

    def _before(self, series: Sequence[Series], cells: Int64s, boundary_ms: int) -> Rows:
        known = cells >= 0
        total = np.zeros(len(cells), WINDOW_ROW)
        total["has_sums"] = True
        for each in series:
            rows = rows_of(each, self._hour.hour_ms, cells[known])
            sums = np.zeros(len(rows), WINDOW_ROW)
            for name in ("records", "marked_records", "marked_sum"):
                sums[name] = rows[name]
            sums["sum"] = np.where(rows["has_sums"], rows["content_sum"], rows["crc_sum"])
            sums["has_sums"] = rows["has_sums"] | (rows["records"] == 0)
            for (_, start), table in each.windows.items():
                if boundary_ms <= start < self._hour.end_ms:
                    later = of_table(each, table, cells[known])
                    for name in _SUMMED:
                        sums[name] -= later[name]
            total[known] = sums
        return total


def _differ(before: Rows, at: Rows) -> Mask:
    alike = (before["has_sums"] == at["has_sums"]) & (before["sum"] == at["sum"])
    result: Mask = ~alike | (before["records"] != at["records"])
    return result


def _differ_from_live(produced: Rows, live: Rows) -> Mask:
    """True where producers counted other batches than the brokers, apart from those of producers that do not count."""
    marked = (produced["marked_records"] != live["marked_records"]) | (produced["marked_sum"] != live["marked_sum"])
    unmarked = produced["records"] - produced["marked_records"]
    foreign = live["records"] - live["marked_records"]
    result: Mask = marked | ((unmarked > 0) & (unmarked != foreign))
    return result
