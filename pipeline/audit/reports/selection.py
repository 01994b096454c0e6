"""Selection of hours for a document: of too many, the best and oldest are left out, and counted. Pure.

Verdicts are made for the chosen hours alone: a month of a thousand topics has more hours than anybody reads.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

from pipeline.audit.judgement.judge import Judgement
from pipeline.audit.judgement.verdicts import AuditedHour, Status
from pipeline.audit.reports.letters import SEVERITY, STATUS_OF
from pipeline.audit.reports.parameters import HoursQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedHours:
    """Hours, sorted by topic and time, and the number of the others by status."""

    hours: Sequence[AuditedHour]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def statuses(self) -> set[Status]:
        """Statuses of all hours, also of those that are left out."""
        return {hour.status for hour in self.hours} | {Status(name) for name in self.left_out}


def select_hours(judgement: Judgement, question: HoursQuestion) -> SelectedHours:
    """Return the hours that a question is about."""
    if question.topics:
        found = [
            hour
            for topic in sorted(question.topics)
            for hour in judgement.hours(topic, question.from_ms, question.to_ms)
        ]
        asked = [hour for hour in found if not question.statuses or hour.status in question.statuses]
        return worst_hours(asked, question.limit)
    by_status: dict[Status, list[tuple[int, str]]] = {}
    for topic, hours in judgement.status_grid(question.from_ms, question.to_ms).items():
        for hour_ms, letter in hours.items():
            by_status.setdefault(STATUS_OF[letter], []).append((hour_ms, topic))
    return _worst_of(judgement, by_status, question.statuses or frozenset(Status), question.limit)


def worst_hours(hours: Sequence[AuditedHour], limit: int) -> SelectedHours:
    """Return at most `limit` of these hours."""
    if len(hours) <= limit:
        return SelectedHours(hours=hours)
    order = sorted(range(len(hours)), key=lambda i: (-SEVERITY[hours[i].status], -hours[i].hour_ms))
    left_out = Counter(str(hours[i].status) for i in order[limit:])
    return SelectedHours(hours=[hours[i] for i in sorted(order[:limit])], left_out=left_out)


def hours_with_findings(judgement: Judgement, topics: Iterable[str] | None, limit: int) -> list[AuditedHour]:
    """Return hours that are not exact, the worst first and then the newest, at most `limit`; `topics`: None for all."""
    chosen = None if topics is None else set(topics)
    by_status: dict[Status, list[tuple[int, str]]] = {}
    for topic, hours in judgement.status_grid().items():
        if chosen is None or topic in chosen:
            for hour_ms, letter in hours.items():
                if letter != "e":
                    by_status.setdefault(STATUS_OF[letter], []).append((hour_ms, topic))
    return list(_worst_of(judgement, by_status, frozenset(Status), limit).hours)


def _worst_of(
    judgement: Judgement, by_status: Mapping[Status, list[tuple[int, str]]], statuses: frozenset[Status], limit: int
) -> SelectedHours:
    places: list[tuple[str, int]] = []
    left_out = {}
    for status in sorted(statuses & by_status.keys(), key=SEVERITY.__getitem__, reverse=True):
        found = by_status[status]
        room = limit - len(places)
        kept = found if len(found) <= room else nlargest(room, found)
        places += [(topic, hour_ms) for hour_ms, topic in kept]
        if len(found) > len(kept):
            left_out[str(status)] = len(found) - len(kept)
    return SelectedHours(hours=judgement.hours_at(sorted(places)), left_out=left_out)
