"""Verdicts on consumer groups: what their members report, and what a member that was killed did not report."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.story import story_of
from pipeline.audit.judgement.verdicts import Status
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import EAST, GRACE_MS, HOUR, HUB, NOW_MS, Amounts, WholeWay, judged, report, signs

SETTLED_MS = NOW_MS - 2 * GRACE_MS


def run(
    instance: str, first: int, end: int, records: int | None = None, content: int = 0, **options: Any
) -> CountReport:
    """A member that has committed offsets `first` to before `end`."""
    given: dict[str, Any] = {"counted_from": first, "end": end, "revision": 3, "created_ms": SETTLED_MS, **options}
    amounts = Amounts(records=end - first if records is None else records, first=first, content=content)
    return report(Tier.GROUP, "hub", HUB, {HOUR: amounts}, name="g", instance=instance, **given)


SUMS = ("batches", "bytes", "crc_sum", "content_sum", "place_sum", "header_sum", "none", "has_sums", "marked_records")
BY_RECORD = {**dict.fromkeys(SUMS, 0), "marked_sum": 0, "by_record": True}


def run_by_record(instance: str, first: int, end: int, counts: Mapping[int, Amounts], **options: Any) -> CountReport:
    """A member of a client that shows no batches, with what it counted by hour."""
    rows = {hour_ms: replace(amounts, columns=BY_RECORD) for hour_ms, amounts in counts.items()}
    given: dict[str, Any] = {"counted_from": first, "end": end, "revision": 3, "created_ms": SETTLED_MS, **options}
    return report(Tier.GROUP, "hub", HUB, rows, name="g", instance=instance, **given)


def test_a_group_that_counts_by_record_is_compared_by_records() -> None:
    assert verdict([run_by_record("a", 100, 110, {HOUR: Amounts()})]) == (Status.EXACT, "")


def test_a_verdict_on_a_group_that_counts_by_record_says_that_it_rests_on_counts_alone() -> None:
    way = WholeWay(loaded=None, replica_options={"created_ms": SETTLED_MS, "end": 200})
    member = run_by_record("a", 100, 110, {HOUR: Amounts()})
    (hour,) = judged([*way.reports(), member]).hours()
    assert hour.status is Status.EXACT
    told = "east: consumed:g was counted record by record: numbers of records are compared, and not their contents"
    assert told in hour.rests_on
    assert "sums over batch headers" in hour.rests_on, "of the other stages"
    assert "sums of CRCs" not in hour.rests_on
    story = story_of(hour)
    assert (
        "The consumer group has taken (g) 10 records, counted one by one: as many as the stage before. Their contents "
        "were not compared." in story
    )
    assert f"The verdict rests on: {told}." in story
    whole = run("a", 100, 110, content=Amounts().content)
    (hour,) = judged([*way.reports(), whole]).hours()
    assert not [text for text in hour.rests_on if "record by record" in text]


def test_a_way_of_two_stages_one_of_which_counts_by_record_rests_on_no_sums() -> None:
    member = run_by_record("a", 100, 110, {HOUR: Amounts()})
    member = replace(member, counter=replace(member.counter, cluster="east"))
    rows, positions = member.rows.copy(), member.positions.copy()
    rows["partition"] = positions["partition"] = EAST.partition
    foreign = Amounts(columns={"marked_records": 0, "marked_sum": 0})
    live = report(Tier.BROKER, "east", EAST, {HOUR: foreign}, created_ms=SETTLED_MS)
    alone: dict[str, Any] = {"routes": [], "mirrored": [], "replica_cluster": None}
    (hour,) = judged([live, replace(member, rows=rows, positions=positions), *signs()[:1]], **alone).hours()
    assert (hour.status, len(hour.stages)) == (Status.EXACT, 2)
    assert not [text for text in hour.rests_on if "sums" in text]


def test_records_that_a_group_by_record_did_not_get_are_unknown_since_they_may_be_of_aborted_transactions() -> None:
    early = HOUR - 10 * HOUR_MS
    options: dict[str, Any] = {"created_ms": SETTLED_MS, "end": 200}
    way = WholeWay(loaded=None, hour_ms=early, live_options=options, replica_options=options, produced=None)
    for counts in ({early: Amounts(records=8)}, {early - 50 * HOUR_MS: Amounts(records=2, first=90)}):
        judgement = judged([*way.reports(), run_by_record("a", 90, 110, counts), *signs()])
        (hour,) = (hour for hour in judgement.hours() if hour.hour_ms == early)
        texts = [str(finding.witness) for finding in hour.findings if finding.at.tier == "consumed"]
        assert len(texts) == 1
        assert "aborted transactions" in texts[0]
        assert hour.status is Status.UNKNOWN


def test_records_of_a_batch_that_crosses_the_end_of_an_hour_are_no_difference() -> None:
    members = [run_by_record("a", 100, 110, {HOUR: Amounts(records=7), HOUR + HOUR_MS: Amounts(records=3, first=107)})]
    assert verdict(members)[0] is Status.EXACT


def test_records_that_were_consumed_again_do_not_make_up_for_others_that_were_not() -> None:
    members = [
        run_by_record("a", 100, 108, {HOUR: Amounts(records=6)}),
        run_by_record("b", 104, 110, {HOUR: Amounts(records=4, first=104)}),
    ]
    status, text = verdict(members)
    assert status is Status.UNKNOWN
    assert "offsets 104 to 107 were consumed again" in text


def verdict(members: Sequence[CountReport]) -> tuple[Status, str]:
    """Status of the hour, and what its findings say."""
    options: dict[str, Any] = {"created_ms": SETTLED_MS, "end": 200}
    way = WholeWay(
        loaded=None, producer_options={"created_ms": SETTLED_MS}, live_options=options, replica_options=options
    )
    hours = judged([*way.reports(), *members, *signs()]).hours()
    hour = next(hour for hour in hours if hour.hour_ms == HOUR)
    return hour.status, " ".join(finding.text for finding in hour.findings)


def test_members_that_follow_each_other_are_exact() -> None:
    members = [run("a", 100, 106, content=1_000), run("b", 106, 110, content=234)]
    assert verdict(members) == (Status.EXACT, "")


def test_a_member_that_was_killed_before_it_reported_is_a_missing_witness() -> None:
    status, text = verdict([run("a", 100, 104, content=1_000), run("b", 106, 110, content=234)])
    assert status is Status.UNKNOWN
    assert "group g" in text
    assert "offsets 104 to 105 were committed without a count" in text


def test_records_that_the_last_member_has_not_committed_are_pending() -> None:
    assert verdict([run("a", 100, 104, content=1_000)])[0] is Status.PENDING


def test_records_that_a_run_passed_and_lacks_are_missing() -> None:
    members = [run("a", 100, 106, 4, content=1_000), run("b", 106, 110, content=234)]
    status, text = verdict(members)
    assert status is Status.MISSING
    assert "2 records" in text


def test_a_hole_elsewhere_excuses_nothing() -> None:
    members = [
        run("a", 100, 106, 4, content=1_000),
        run("b", 106, 110, content=234),
        report(Tier.GROUP, "hub", HUB, {}, name="g", instance="c", counted_from=150, end=160, created_ms=SETTLED_MS),
    ]
    assert verdict(members)[0] is Status.MISSING


def test_records_that_were_consumed_again_are_not_extra() -> None:
    status, text = verdict([run("a", 100, 110, content=1_234), run("b", 104, 110, content=500)])
    assert status is Status.UNKNOWN
    assert "offsets 104 to 109 were consumed again" in text


def test_a_group_at_the_live_cluster_is_compared_with_it() -> None:
    members = [
        report(
            Tier.GROUP,
            "east",
            EAST,
            {HOUR: Amounts(records=8)},
            name="g",
            instance="a",
            end=110,
            revision=1,
            created_ms=SETTLED_MS,
        )
    ]
    status, text = verdict(members)
    assert status is Status.MISSING
    assert "consumed" in text
