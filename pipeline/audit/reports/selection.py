"""Selection of hours for a document: of too many, the best and oldest are left out, and counted. Pure.

Verdicts are made for the chosen hours alone: a month of a thousand topics has more hours than anybody reads.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest

from pipeline.audit.judgement.judge import Judgement
from pipeline.audit.judgement.verdicts import AuditedHour, Status
from pipeline.audit.reports.letters import SEVERITY
from pipeline.audit.reports.parameters import HoursQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedHours:
    """Hours, sorted by topic and time, and the number of the others by status."""

    hours: Sequence[AuditedHour]
    left_out: Mapping[str, int] = field(default_factory=dict)
    uncounted: Sequence[str] = ()
    """Topics that were named, and have no hours in the range: nobody knows whether they are complete."""

    @property
    def statuses(self) -> set[Status]:
        """Statuses of all hours, also of those that are left out."""
        return {hour.status for hour in self.hours} | {Status(name) for name in self.left_out}


def select_hours(judgement: Judgement, question: HoursQuestion) -> SelectedHours:
    """Return the hours that a question is about."""
    if question.topics:
        by_topic = {
            topic: judgement.hours(topic, question.from_ms, question.to_ms) for topic in sorted(question.topics)
        }
        found = [hour for hours in by_topic.values() for hour in hours]
        asked = [hour for hour in found if not question.statuses or hour.status in question.statuses]
        uncounted = [topic for topic, hours in by_topic.items() if not hours]
        return replace(worst_hours(asked, question.limit), uncounted=uncounted)
    by_hour = judgement.topics_by_status(question.from_ms, question.to_ms)
    return _worst_of(judgement, by_hour, question.statuses or frozenset(Status), question.limit)


def worst_hours(hours: Sequence[AuditedHour], limit: int) -> SelectedHours:
    """Return at most `limit` of these hours."""
    if len(hours) <= limit:
        return SelectedHours(hours=hours)
    order = sorted(range(len(hours)), key=lambda i: (-SEVERITY[hours[i].status], -hours[i].hour_ms))
    left_out = Counter(str(hours[i].status) for i in order[limit:])
    return SelectedHours(hours=[hours[i] for i in sorted(order[:limit])], left_out=left_out)


def hours_with_findings(judgement: Judgement, topics: Iterable[str] | None, limit: int) -> list[AuditedHour]:
    """Return hours that are not exact, the worst first and then the newest, at most `limit`; `topics`: None for all."""
    by_hour = judgement.topics_by_status()
    if topics is not None:
        chosen = set(topics)
        by_hour = {
            hour_ms: {status: [name for name in names if name in chosen] for status, names in found.items()}
            for hour_ms, found in by_hour.items()
        }
    return list(_worst_of(judgement, by_hour, frozenset(Status) - {Status.EXACT}, limit).hours)


def _worst_of(
    judgement: Judgement, by_hour: Mapping[int, Mapping[Status, list[str]]], statuses: frozenset[Status], limit: int
) -> SelectedHours:
    places: list[tuple[str, int]] = []
    left_out = {}
    for status in sorted(statuses, key=SEVERITY.__getitem__, reverse=True):
        left = 0
        for hour_ms in sorted(by_hour, reverse=True):
            names = by_hour[hour_ms].get(status, [])
            room = limit - len(places)
            kept = names if len(names) <= room else nlargest(room, names)
            places += [(name, hour_ms) for name in kept]
            left += len(names) - len(kept)
        if left:
            left_out[str(status)] = left
    return SelectedHours(hours=judgement.hours_at(sorted(places)), left_out=left_out)
