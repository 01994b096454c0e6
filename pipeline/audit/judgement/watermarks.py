"""Watermarks: up to when the windows of a topic are complete. Pure."""

from collections.abc import Mapping

from pipeline.audit.events.report import OLDER
from pipeline.audit.judgement.topic_hours import TopicHour
from pipeline.audit.judgement.verdicts import Status, Watermark
from pipeline.audit.ledger.ledger import Ledger
from pipeline.records.tally import HOUR_MS

_COMPLETE = (Status.EXACT, Status.RECOMPRESSED, Status.EXPLAINED)


def watermarks_of(ledger: Ledger, verdicts: Mapping[int, Mapping[int, TopicHour]]) -> list[Watermark]:
    """Return the watermark of each topic that has counts, sorted by topic."""
    complete: dict[int, int] = {}
    waits: dict[int, str] = {}
    for hour_ms in sorted(verdicts):
        for topic, verdict in verdicts[hour_ms].items():
            if topic in waits:
                continue
            if verdict.status in _COMPLETE:
                complete[topic] = hour_ms + HOUR_MS if hour_ms != OLDER else hour_ms
            else:
                waits[topic] = _waits_for(verdict)
    names = ledger.topics.names
    found = [
        Watermark(
            topic=names[topic], complete_ms=complete.get(topic), waits_for=waits.get(topic, "the hour is not over")
        )
        for topic in complete.keys() | waits.keys()
    ]
    return sorted(found, key=lambda watermark: watermark.topic)


def _waits_for(verdict: TopicHour) -> str:
    for finding in verdict.findings:
        if finding.status is verdict.status:
            return finding.text
    return str(verdict.missing[0]) if verdict.missing else verdict.status.value
