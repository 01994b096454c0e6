"""A producer whose records are late by event time, for days: hours become complete, once, and no word on them is false.

Beside it a punctual producer writes to the same partitions. All stages behind the brokers lag by a step.
"""

from collections import Counter
from pathlib import Path

import pytest

from pipeline.audit.counting.producer_counter import HELD_INTERVALS
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import Judgement
from pipeline.audit.judgement.verdicts import AuditedHour, Status
from pipeline.audit.ledger.ledger import SeriesKey
from pipeline.audit.reports.documents import Knowledge, report_document
from pipeline.audit.reports.parameters import HoursQuestion
from pipeline.audit.reports.selection import select_hours
from pipeline.audit.reports.status import GridQuestion, status_document
from pipeline.cli.audit.rendering import exit_code
from pipeline.cli.audit.watch import letters_of, status_table
from pipeline.records.tally import HOUR_MS
from tests.support.audited.brokers import WINDOW_MS
from tests.support.audited.counters import CountedProducer
from tests.support.audited.way import FIRST_HOUR_MS, GRACE_MS, HUB, LIVE, PARTITIONS, RECORDS, TOPIC, Way

RECORDS_AT_ONCE = RECORDS * len(PARTITIONS)
MINUTE_MS = 60_000


class LateWay:
    """A way with a punctual and a late producer, and what the test knows of them: acknowledged records by hour."""

    def __init__(self, root: Path, *, late_ms: int, step_ms: int, rests: bool) -> None:
        """`rests`: the late producer has no record under way when it gives its regular life signs."""
        self.way = Way(root)
        self.late_ms, self.step_ms, self.rests = late_ms, step_ms, rests
        self.way.late = {"stored"}  # files are read back once, at the end
        self.punctual = self.way.start_producer(step_ms)
        self.late = self.way.start_producer(step_ms)
        self.acknowledged: Counter[int] = Counter()
        self.letters: dict[int, str] = {}
        """Letters that a watch has printed for each hour, in their order."""
        self.open_hours = 0
        """Greatest number of hours that were judged again each time."""
        self.way.producers[0].end()
        self.way.report()

    def send(self, producer: CountedProducer, time_ms: int) -> None:
        """Send a record to each partition. A record of a closed window waits until a sign has opened the window."""
        window = time_ms // WINDOW_MS
        producer.counter.oldest_window = lambda: window
        first_open = producer.counter.first_open_window
        assert first_open is not None
        if window < first_open:
            self.way.publish(producer.reports())
        self.way.produce(time_ms, 1, by=producer)
        self.acknowledged[time_ms - time_ms % HOUR_MS] += RECORDS_AT_ONCE

    def step(self, *, checks: bool = True) -> None:
        """Take one step."""
        self.send(self.punctual, self.way.now_ms)
        self.send(self.late, self.way.now_ms - self.late_ms)
        self.punctual.counter.oldest_window = lambda: None
        if self.rests:
            self.late.counter.oldest_window = lambda: None
        if checks:
            self.check()
        self.way.report()
        if checks:
            self.check()
        self.way.finish_stages()
        self.way.pass_time(self.step_ms)
        self.way.report()
        if checks:
            self.check()

    def check(self) -> None:
        judgement = self.way.judgement()
        hours = {hour.hour_ms: hour for hour in judgement.hours(topic=TOPIC)}
        for hour in hours.values():
            assert not [one.text for one in hour.findings if one.status.is_difference], hour
            if hour.status is Status.EXACT:
                self.check_exact(hour)
        for mark in judgement.watermarks():
            complete_ms = 0 if mark.complete_ms is None else mark.complete_ms
            assert complete_ms <= self.way.now_ms - GRACE_MS
            assert all(hours[start].status is Status.EXACT for start in hours if start + HOUR_MS <= complete_ms)
            assert complete_ms > self.way.now_ms - GRACE_MS - 2 * WINDOW_MS or mark.waits_for
        for start_ms, letter in self.watched(judgement).items():
            if not self.letters.get(start_ms, "").endswith(letter):
                self.letters[start_ms] = self.letters.get(start_ms, "") + letter
        self.open_hours = max(self.open_hours, sum(hour.status is not Status.EXACT for hour in hours.values()))

    def check_exact(self, hour: AuditedHour) -> None:
        """An exact hour is over, and all that was acknowledged of it has arrived everywhere."""
        assert hour.hour_ms + HOUR_MS + GRACE_MS <= self.way.now_ms
        counted = {str(stage): counts.records for stage, counts in hour.stages.items()}
        assert set(counted.values()) == {self.acknowledged[hour.hour_ms]}, (hour, counted)

    def watched(self, judgement: Judgement) -> dict[int, str]:
        """Return the letters that `pipeline audit watch` has of each hour."""
        question = GridQuestion.read({}, self.way.now_ms)
        document = status_document(judgement.letters_by_topic(), judgement.watermarks(), self.knowledge(), question)
        document["judged_ms"] = self.way.now_ms
        if document["topics"]:
            assert document["topics"][0]["waits_for"] in status_table(document, self.way.now_ms)
        return {hour.start_ms: letter for hour, letter in letters_of(document).items()}

    def knowledge(self) -> Knowledge:
        return Knowledge(
            judged_ms=self.way.now_ms,
            clusters={LIVE: {"error": None}, HUB: {"error": None}},
            unknown=[],
            is_complete=True,
        )

    def exit_code(self, from_ms: int, to_ms: int) -> int:
        """Return the exit code of `pipeline audit report` on these hours."""
        judgement = self.way.judgement()
        chosen = select_hours(judgement, HoursQuestion(from_ms=from_ms, to_ms=to_ms))
        return exit_code(report_document(chosen, judgement.watermarks(), self.knowledge()))


def check_late_producer(scene: LateWay, steps: int, *, checked_each: int = 1) -> None:
    way = scene.way
    for number in range(steps):
        scene.step(checks=number % checked_each == 0)
    open_ms = way.now_ms - scene.late_ms - (HELD_INTERVALS + 1) * scene.step_ms
    late_hour_ms = open_ms - open_ms % HOUR_MS
    late_hours = range(late_hour_ms - 3 * HOUR_MS, late_hour_ms, HOUR_MS)
    hours = {hour.hour_ms: hour for hour in way.hours().values()}
    for hour_ms in late_hours:
        assert hours[hour_ms].status is Status.EXACT
        assert any("records came late" in text for text in hours[hour_ms].rests_on)
        assert scene.letters[hour_ms] in ("e", "pe"), "an hour becomes exact once, after its late records"
    # The hours of late records that are still to come wait for the late producer by name.
    (mark,) = way.judgement().watermarks()
    assert mark.complete_ms is not None
    assert late_hour_ms - HOUR_MS <= mark.complete_ms <= way.now_ms - scene.late_ms
    assert f"producer {scene.late.instance} on web-1" in mark.waits_for
    assert scene.exit_code(late_hours[0], late_hours[-1] + 1) == 0
    assert scene.exit_code(late_hours[0], way.now_ms) == 5
    # State is bounded by the hours there are; each judgement looks at those alone that may get records.
    series = way.ledger.series[SeriesKey(Tier.BROKER, LIVE)]
    assert len(series.late) <= len(series.hours) <= (way.now_ms - FIRST_HOUR_MS + scene.late_ms) // HOUR_MS + 2
    assert len(series.windows) == series.windows_kept
    assert scene.open_hours <= (way.now_ms - open_ms) // HOUR_MS + 4
    # Once the late producer has ended, all hours are complete.
    scene.late.end()
    scene.punctual.end()
    way.finish_stages()
    way.late.clear()
    way.pass_time(2 * HOUR_MS)
    way.settle()
    scene.check()
    assert {hour.status for hour in way.hours().values()} == {Status.EXACT}
    assert scene.exit_code(FIRST_HOUR_MS - scene.late_ms - HOUR_MS, way.now_ms) == 0


@pytest.mark.long
@pytest.mark.parametrize("rests", [False, True], ids=["always under way", "rests between"])
def test_hours_of_a_producer_that_is_always_70_minutes_late_become_complete(rests: bool, tmp_path: Path) -> None:
    check_late_producer(LateWay(tmp_path, late_ms=70 * MINUTE_MS, step_ms=15 * MINUTE_MS, rests=rests), 26)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("rests", [False, True], ids=["always under way", "rests between"])
def test_hours_of_a_producer_that_is_always_26_hours_late_become_complete(rests: bool, tmp_path: Path) -> None:
    scene = LateWay(tmp_path, late_ms=26 * HOUR_MS, step_ms=25 * MINUTE_MS, rests=rests)
    check_late_producer(scene, 4 * 24 * 60 // 25, checked_each=3)
