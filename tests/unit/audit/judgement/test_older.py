"""Rows of all hours that counters keep no longer apart: counters that folded at different hours are compared alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pipeline.audit.counting.windows import WindowSums
from pipeline.audit.events.report import OLDER, CountReport, SkippedOffsets
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.verdicts import AuditedHour, Explanation, OffsetSpan, Route, Status
from pipeline.model import TopicPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.batch_hashes import header_table
from pipeline.records.producer_marks import mark_producer_id
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import EAST, GRACE_MS, HOUR, HUB, LAKE, NOW_MS, judged, report, signs

KEPT = 3
RECORDS = 2
HOURS = [HOUR - number * HOUR_MS for number in reversed(range(6))]
SETTLED_MS = NOW_MS - 2 * GRACE_MS


def batch(number: int, hour_ms: int, *, crc: int = 7) -> BatchHeader:
    """Return a batch of two records of a producer that counts; `number` is its place in the log."""
    return BatchHeader(
        base_offset=number * RECORDS,
        batch_length=88,
        partition_leader_epoch=0,
        magic=2,
        crc=crc,
        attributes=0,
        last_offset_delta=RECORDS - 1,
        base_timestamp=hour_ms + 5,
        max_timestamp=hour_ms + 5,
        producer_id=mark_producer_id(5),
        producer_epoch=0,
        base_sequence=number * RECORDS,
        record_count=RECORDS,
    )


LOG = [batch(number, hour_ms) for number, hour_ms in enumerate(HOURS)]


@dataclass
class Counted:
    """A counter that keeps few hours apart, and reports after each batch."""

    tier: Tier
    cluster: str
    partition: TopicPartition
    kept: int = KEPT
    options: dict[str, Any] = field(default_factory=dict)

    def reports(self, log: Sequence[BatchHeader], *, end: int | None = None) -> Iterator[CountReport]:
        """Yield the reports of a counter that counts a log; `end`: up to which offset it counted."""
        sums = WindowSums(HOUR_MS, max_hours=self.kept)
        for number, header in enumerate(log):
            sums.add(header_table([header]))
            reached = header.base_offset + RECORDS
            rows = sums.take_changed()
            rows["partition"] = self.partition.partition
            rows["revision"] = number + 1 if self.tier.has_lives else reached
            yield replace(self._report(reached), rows=rows)
        if end is not None:
            yield self._report(end)

    def _report(self, end: int) -> CountReport:
        options = {"created_ms": SETTLED_MS, "end": end, **self.options}
        return report(self.tier, self.cluster, self.partition, {}, **options)


def live(**options: Any) -> Counted:
    return Counted(Tier.BROKER, "east", EAST, **options)


def replica(**options: Any) -> Counted:
    return Counted(Tier.BROKER, "hub", HUB, **options)


def producer(life: str = "p1", **options: Any) -> Counted:
    return Counted(Tier.PRODUCER, "east", EAST, options={"instance": life, "is_ended": True}, **options)


def load(**options: Any) -> Counted:
    return Counted(Tier.LOAD, "hub", HUB, options={"name": LAKE}, **options)


def verdicts(*reports: Iterator[CountReport], **changes: Any) -> dict[int, AuditedHour]:
    brokers = [one for one in signs() if one.counter.tier is Tier.BROKER]
    counted = [one for each in reports for one in each]
    if all(one.counter.tier is not Tier.PRODUCER for one in counted):
        counted = list(map(unmarked, counted))
    found = judged([*counted, *brokers], **changes)
    return {hour.hour_ms: hour for hour in found.hours()}


def unmarked(one: CountReport) -> CountReport:
    """Return a report about producers that do not count."""
    rows = one.rows.copy()
    rows["marked_records"] = rows["marked_sum"] = 0
    return replace(one, rows=rows)


def statuses(*reports: Iterator[CountReport], **changes: Any) -> dict[int, Status]:
    return {hour_ms: hour.status for hour_ms, hour in verdicts(*reports, **changes).items()}


ALL_EXACT = dict.fromkeys([OLDER, *HOURS], Status.EXACT)


def test_counters_that_folded_the_same_hours_are_exact() -> None:
    assert statuses(live().reports(LOG), replica().reports(LOG)) == ALL_EXACT


def test_a_replica_that_is_behind_has_folded_less() -> None:
    found = statuses(live().reports(LOG), replica().reports(LOG[:-1]))
    assert found == ALL_EXACT | {HOURS[-1]: Status.PENDING}


@pytest.mark.parametrize("kept", [1, 2, 4, 5, 100])
def test_counters_may_keep_different_numbers_of_hours(kept: int) -> None:
    assert statuses(live().reports(LOG), replica(kept=kept).reports(LOG)) == ALL_EXACT
    assert statuses(live().reports(LOG), replica().reports(LOG), load(kept=kept).reports(LOG)) == ALL_EXACT


def test_lives_of_producers_that_folded_nothing_have_what_the_broker_folded() -> None:
    lives = [producer("p1").reports(LOG[:2]), producer("p2").reports(LOG[2:4]), producer("p3").reports(LOG[4:])]
    assert statuses(*lives, live().reports(LOG), replica().reports(LOG)) == ALL_EXACT
    assert statuses(producer().reports(LOG), live().reports(LOG), replica().reports(LOG)) == ALL_EXACT


def test_a_record_that_is_too_old_for_an_hour_of_its_own_at_the_broker() -> None:
    """Producers and loads of few hours have rows of the hour; brokers put the record to the row of older hours."""
    old = [*LOG, batch(len(LOG), HOURS[0] - 50 * HOUR_MS), batch(len(LOG) + 1, HOURS[0])]
    ways = [producer("p1").reports(LOG), producer("p2").reports(old[len(LOG) :])]
    ways += [live().reports(old), replica().reports(old), load(kept=100).reports(old)]
    assert statuses(*ways) == ALL_EXACT | {HOURS[0] - 50 * HOUR_MS: Status.EXACT}


def test_a_record_that_is_too_old_and_was_lost_is_missing_among_the_older_hours() -> None:
    old = [*LOG, batch(len(LOG), HOURS[0] - 50 * HOUR_MS)]
    end = len(old) * RECORDS
    found = verdicts(producer().reports(old), live().reports(old), replica().reports(LOG, end=end))
    assert found[OLDER].status is Status.MISSING
    (finding,) = found[OLDER].findings
    assert (str(finding.at), finding.records) == ("replica", RECORDS)
    again = verdicts(
        producer("p1").reports(LOG),
        producer("p2").reports(old[-1:]),
        live().reports(LOG, end=end),
        replica().reports(LOG),
    )
    assert again[HOURS[0] - 50 * HOUR_MS].status is Status.MISSING


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_record_that_was_lost_before_its_hour_was_folded_stays_missing(lost: int) -> None:
    """Its hour says so, and so does the row of older hours once both have folded it."""
    copied = [header for number, header in enumerate(LOG) if number != lost]
    found = verdicts(live().reports(LOG), replica().reports(copied))
    assert found[HOURS[lost]].status is Status.MISSING
    assert found[OLDER].status is Status.MISSING
    assert [finding.records for finding in found[OLDER].findings] == [RECORDS]
    assert {hour for hour, each in found.items() if each.status is Status.EXACT} == {*HOURS} - {HOURS[lost]}


def test_one_lost_and_one_doubled_among_older_hours_are_changed() -> None:
    copied = [LOG[1]._replace(base_offset=0), *LOG[1:]]
    found = statuses(live().reports(LOG), replica().reports(copied))
    assert found[OLDER] is Status.CHANGED
    assert found[HOURS[0]] is Status.MISSING
    assert found[HOURS[1]] is Status.EXTRA


def test_a_batch_that_was_changed_before_its_hour_was_folded_stays_changed() -> None:
    copied = [LOG[0]._replace(crc=8), *LOG[1:]]
    found = statuses(live().reports(LOG), replica().reports(copied))
    assert (found[OLDER], found[HOURS[0]]) == (Status.CHANGED, Status.CHANGED)


def test_what_a_gap_explains_of_an_hour_it_explains_of_older_hours() -> None:
    gap = OffsetSpan(first=0, last=RECORDS - 1)
    routes = [Route(cluster="east", source=EAST, replica=HUB, gaps=[gap])]
    found = verdicts(live().reports(LOG), replica().reports(LOG[1:]), routes=routes)
    assert found[OLDER].findings[0].explanation is Explanation.GAP
    assert found[HOURS[0]].status is Status.EXPLAINED
    fewer = verdicts(live().reports(LOG), replica().reports(LOG[2:]), routes=routes)
    assert fewer[OLDER].status is Status.MISSING


def test_what_a_load_skipped_explains_what_it_lacks_of_older_hours() -> None:
    *before, last = load().reports(LOG[1:])
    fact = SkippedOffsets(0, HUB.partition, HOURS[0], 0, RECORDS - 1, RECORDS, "lost")
    loaded = iter([*before, replace(last, skipped=[fact])])
    found = verdicts(live().reports(LOG), replica().reports(LOG), loaded)
    assert (found[OLDER].status, found[HOURS[0]].status) == (Status.EXPLAINED, Status.EXPLAINED)


def test_a_load_that_does_not_know_older_hours_any_more_lacks_nothing_by_that() -> None:
    """Commits that expired are no reason for a loss, and no proof that nothing was lost."""
    found = verdicts(live().reports(LOG), replica().reports(LOG), load(kept=100).reports(LOG[2:]))
    assert found[OLDER].status is Status.UNKNOWN
    assert "no longer knows" in str(found[OLDER].missing_witnesses[0])


def test_older_hours_are_not_over_before_the_latest_of_them_is() -> None:
    """Records with times to come can fold the hour that is being written."""
    ahead = [*LOG, *(batch(len(LOG) + number, HOUR + (10 + number) * HOUR_MS) for number in range(KEPT))]
    now_ms = HOUR + HOUR_MS // 2
    read = {"east": now_ms, "hub": now_ms}
    ways = [live().reports(ahead), replica().reports(ahead)]
    assert statuses(*ways, now_ms=now_ms, read_to_ms=read)[OLDER] is Status.PENDING


def test_a_late_record_of_the_replica_alone_is_noticed_among_older_hours() -> None:
    """The replica keeps an hour that the live broker has folded: a record more there belongs to older hours."""
    doubled = [*LOG[:-1], LOG[2]._replace(base_offset=LOG[-1].base_offset - 1)]
    found = statuses(live().reports(LOG), replica(kept=4).reports(doubled))
    assert found[OLDER] is not Status.EXACT


def test_folding_brings_no_late_records() -> None:
    last_ms = NOW_MS + HOUR_MS
    *first, last = live().reports(LOG)
    reports = [*first, *signs(last_ms - GRACE_MS), replace(last, created_ms=last_ms - 1), *replica().reports(LOG)]
    reports = list(map(unmarked, reports))
    hours = judged([*reports, *signs(last_ms)], now_ms=last_ms, read_to_ms={"east": last_ms, "hub": last_ms}).hours()
    (older,) = [hour for hour in hours if hour.hour_ms == OLDER]
    assert older.status is Status.EXACT
    assert not [text for text in older.rests_on if "late" in text]
