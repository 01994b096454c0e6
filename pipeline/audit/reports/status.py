"""Document of `/v1/status`: one letter for each topic and hour, the first view of the page. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pipeline.audit.collecting.reading import instant
from pipeline.audit.judgement.verdicts import Watermark
from pipeline.audit.reports.documents import Knowledge, hour_name, verdict_on, witness_documents
from pipeline.audit.reports.letters import NOTHING_COUNTED, STATUS_OF
from pipeline.audit.reports.parameters import QuestionError, Values, only_value, read_instant, read_status
from pipeline.records.tally import HOUR_MS, window_start

MAX_HOURS: Final = 31 * 24
DEFAULT_HOURS: Final = 30 * 24
MAX_TOPICS: Final = 10_000

Grid = Iterable[tuple[str, Mapping[int, str]]]
"""Topics, each with the letter of each hour that has counts, by its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridQuestion:
    """Range of hours, and which topics. `letter`: only topics that have it in the range; empty for all."""

    from_ms: int
    hours: int
    text: str = ""
    letter: str = ""

    @classmethod
    def read(cls, values: Values, now_ms: int) -> "GridQuestion":
        """Return the question of a query. Raises QuestionError."""
        from_ms, to_ms = read_instant(values, "from"), read_instant(values, "to")
        if to_ms is None:
            to_ms = window_start(now_ms, HOUR_MS) + HOUR_MS
            if from_ms is not None:
                first_ms = window_start(from_ms, HOUR_MS)
                to_ms = max(first_ms + HOUR_MS, min(to_ms, first_ms + MAX_HOURS * HOUR_MS))
        end_ms = -window_start(-to_ms, HOUR_MS)
        begin_ms = end_ms - DEFAULT_HOURS * HOUR_MS if from_ms is None else window_start(from_ms, HOUR_MS)
        hours = (end_ms - begin_ms) // HOUR_MS
        if not 1 <= hours <= MAX_HOURS or (from_ms is not None and from_ms >= to_ms):
            raise QuestionError(f"from: must be before `to`, and at most {MAX_HOURS // 24} days before it")
        status = only_value(values, "status")
        letter = "" if status is None else next(each for each in STATUS_OF if STATUS_OF[each] is read_status(status))
        return cls(from_ms=begin_ms, hours=hours, text=only_value(values, "topic") or "", letter=letter)

    @property
    def to_ms(self) -> int:
        """End of the last hour."""
        return self.from_ms + self.hours * HOUR_MS


def status_document(
    grid: Grid, watermarks: Iterable[Watermark], knowledge: Knowledge, asked: GridQuestion
) -> dict[str, Any]:
    """Return the document. `verdict` and `counts` are about all topics that were asked for, also those left out."""
    marks = {mark.topic: mark for mark in watermarks}
    counts: Counter[str] = Counter()
    topics: list[dict[str, Any]] = []
    text = asked.text.lower()
    times = range(asked.from_ms, asked.to_ms, HOUR_MS)
    chosen = 0
    starts: list[int] = []
    for topic, hours in grid:
        starts += (min(hours), max(hours))
        if text not in topic.lower():
            continue
        letters = "".join([hours.get(time_ms, NOTHING_COUNTED) for time_ms in times])
        if asked.letter and asked.letter not in letters:
            continue
        chosen += 1
        counts.update(letters)
        if len(topics) < MAX_TOPICS:
            topics.append(_topic_document(topic, hours, letters, marks.get(topic), asked))
    del counts[NOTHING_COUNTED]
    statuses = {STATUS_OF[letter] for letter in counts}
    verdict = verdict_on(statuses, is_complete=knowledge.is_complete)
    return {
        "verdict": verdict,
        "exact": verdict == "exact",
        "hour_ms": HOUR_MS,
        "from": hour_name(asked.from_ms),
        "from_ms": asked.from_ms,
        "to": hour_name(asked.to_ms),
        "hours": asked.hours,
        "topics": topics,
        "topics_left_out": chosen - len(topics),
        "counts": dict(counts),
        "first_ms": min(starts, default=None),
        "last_ms": max(starts, default=None),
        "unknown": witness_documents(knowledge.unknown),
        "clusters": knowledge.clusters,
    }


def _topic_document(
    topic: str, hours: Mapping[int, str], letters: str, mark: Watermark | None, asked: GridQuestion
) -> dict[str, Any]:
    outside: Counter[str] = Counter()
    if len(hours) > asked.hours - letters.count(NOTHING_COUNTED):
        outside.update(each for time_ms, each in hours.items() if not asked.from_ms <= time_ms < asked.to_ms)
    stripped = letters.lstrip(NOTHING_COUNTED)
    complete_ms = None if mark is None else mark.complete_ms
    return {
        "topic": topic,
        "letters": stripped.rstrip(NOTHING_COUNTED),
        "start": len(letters) - len(stripped) if stripped else 0,
        "outside": dict(outside),
        "complete_to": None if complete_ms is None else instant(complete_ms),
        "complete_ms": complete_ms,
        "waits_for": "" if mark is None else mark.waits_for,
    }
