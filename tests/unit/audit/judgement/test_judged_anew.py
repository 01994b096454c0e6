"""Each hour is judged anew in turn: after ten minutes a judge that goes on says what a new one says, whatever came."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from pipeline.audit.events.report import OLDER, CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import ANEW_MS, DIFFERING, Judge, Judgement
from pipeline.audit.judgement.verdicts import Expectations, MirroredTopic, Route, Witness
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.ledger.limits import LedgerLimits
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import EXPECTED, GRACE_MS, HOUR, Amounts, report, signs

TOPICS = ("clicks", "views")
HOURS = 5
LATER_MS = HOUR + 10 * HOUR_MS
READ = dict.fromkeys(("east", "hub"), LATER_MS + 9 * HOUR_MS)
WITNESS = Witness(name="mirror", reason="is away")
ALL = replace(
    EXPECTED,
    partitions={(cluster, topic): count for cluster, count in (("east", 1), ("hub", 4)) for topic in TOPICS},
    mirrored=[MirroredTopic(cluster="east", topic=topic, replica_topic=topic) for topic in TOPICS],
    routes=[
        Route(cluster="east", source=TopicPartition(topic, 0), replica=TopicPartition(topic, 3)) for topic in TOPICS
    ],
    read_to_ms=READ,
)
UNMARKED = {"marked_records": 0, "marked_sum": 0}
ONE_BY_ONE = {**UNMARKED, "by_record": True, "has_sums": False}
SOURCES = (
    (Tier.PRODUCER, "east", 0, ("",), ("p1", "p2")),
    (Tier.BROKER, "east", 0, ("",), ("",)),
    (Tier.BROKER, "hub", 3, ("",), ("",)),
    (Tier.MIRROR, "east", 0, ("",), ("",)),
    (Tier.LOAD, "hub", 3, ("", "/lake", "/raw"), ("",)),
    (Tier.STORED, "hub", 3, ("/lake",), ("",)),
    (Tier.GROUP, "east", 0, ("g",), ("m1", "m2")),
)


def any_report(random: Random, created_ms: int) -> CountReport:
    """A report of any counter: what was expected, or something else."""
    tier, cluster, partition, names, instances = random.choice(SOURCES)
    odd = random.choice((0, 0.1, 0.4))

    def some(usual: object, *others: object) -> Any:
        return random.choice(others) if random.random() < odd else usual

    rows = {
        HOUR + number * HOUR_MS: Amounts(
            first=100 + 10 * number,
            records=some(10, 8, 12),
            content=some(1_234, 2_000),
            columns=some({}, UNMARKED, ONE_BY_ONE),
        )
        for number in sorted(random.sample(range(HOURS), random.choice((0, 1, 1, 2, 4))))
    }
    if random.random() < odd / 4:
        until = {"until_ms": HOUR + random.randrange(1, 4) * HOUR_MS}
        rows = {OLDER: Amounts(records=20, content=2_468, columns=until), **rows}
    return report(
        tier,
        cluster,
        TopicPartition(random.choice(TOPICS), partition),
        rows,
        name=random.choice(names),
        instance=random.choice(instances),
        topic_id=some("", "old", "new") if cluster == "hub" else "",  # a verdict outlives its topic of a live cluster
        created_ms=created_ms,
        revision=random.choice((1, 2, 900)) if tier.has_lives else None,
        end=some(150, None, 110, 200),
        start=some(0, 105),
        counted_from=some(0, 100, 105),
        epoch=some(0, 1),
        lost=some(0, 1),
        is_ended=some(False, True),
    )


def any_expectations(random: Random, known: Expectations) -> Expectations:
    changes: list[Callable[[], Expectations]] = [
        lambda: replace(known, unknown=random.choice(([], [WITNESS], [replace(WITNESS, cluster="east")]))),
        lambda: replace(known, mirrored=random.sample(list(ALL.mirrored), random.randrange(3))),
        lambda: replace(known, routes=random.sample(list(ALL.routes), random.randrange(3))),
        lambda: replace(known, compacted=random.choice((frozenset(), frozenset([("east", "views")])))),
        lambda: ALL,
    ]
    return random.choice(changes)()


def whole_way(topic: str, hours: range = range(HOURS)) -> list[CountReport]:
    """Reports on which all hours are exact."""
    return [
        report(
            tier,
            cluster,
            TopicPartition(topic, partition),
            {HOUR + number * HOUR_MS: Amounts(first=100 + 10 * number)},
            name=names[0],
            instance=instances[0],
            revision=number + 1 if tier.has_lives else None,
            created_ms=HOUR + (number + 1) * HOUR_MS + GRACE_MS // 2,
        )
        for tier, cluster, partition, names, instances in SOURCES[:3]
        for number in hours
    ]


def told(judgement: Judgement) -> dict[object, object]:
    found: dict[object, object] = {
        (each.topic, each.hour_ms): (
            each.status,
            each.stages,
            each.findings,
            set(each.rests_on),
            set(each.missing_witnesses),
        )
        for each in judgement.hours()
    }
    return found | {mark.topic: mark for mark in judgement.watermarks()}


def new_judge(ledger: Ledger) -> Judge:
    return Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=HOUR_MS)


def differences(seed: int) -> list[tuple[object, object, object]]:
    """Return what a judge that goes on says ten minutes after changes and what a new one does, where they differ."""
    random = Random(seed)
    ledger, expected, now_ms = Ledger(settle_ms=GRACE_MS), ALL, LATER_MS
    ledger.apply_all([each for topic in TOPICS for each in whole_way(topic)])
    judge, found = new_judge(ledger), []
    for _ in range(12):
        for _ in range(random.choice((0, 1, 1, 3))):
            ledger.apply(any_report(random, HOUR + random.randrange(1, 10) * HOUR_MS))
        for one in signs(now_ms):
            ledger.apply(one)
        if random.random() < 0.2:
            expected = any_expectations(random, expected)
        judge.judge(expected, now_ms)
        if random.random() < 0.3:
            now_ms += ANEW_MS
            known, new = told(judge.judge(expected, now_ms)), told(new_judge(ledger).judge(expected, now_ms))
            found += [
                (key, known.get(key), new.get(key))
                for key in known.keys() | new.keys()
                if known.get(key) != new.get(key)
            ]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_ten_minutes_later_a_judge_that_goes_on_says_what_a_new_one_says(seed: int) -> None:
    assert [found for number in range(5 * seed, 5 * (seed + 1)) for found in differences(number)] == []


@pytest.mark.long
def test_ten_minutes_after_300_histories_a_judge_that_goes_on_says_what_a_new_one_says() -> None:
    assert [found for seed in range(20, 320) for found in differences(seed)] == []


def test_hours_are_judged_anew_in_turn_and_all_of_them_within_ten_minutes() -> None:
    ledger = Ledger(settle_ms=GRACE_MS)
    ledger.apply_all([*whole_way("clicks"), *signs(LATER_MS + ANEW_MS)])
    judge = new_judge(ledger)
    judge.judge(ALL, LATER_MS)
    more = {HOUR + number * HOUR_MS: Amounts(first=100 + 10 * number, records=12) for number in range(HOURS)}
    ledger.apply(report(Tier.BROKER, "east", TopicPartition("clicks", 0), more, created_ms=LATER_MS))
    ledger.take_touched()  # so that the judge is told nothing of the change
    differing = []
    for minutes in range(11):
        hours = judge.judge(ALL, LATER_MS + minutes * ANEW_MS // 10).hours("clicks")
        differing.append(sum(hour.status in DIFFERING for hour in hours))
    assert differing[0] == 0
    assert differing == sorted(differing)
    assert differing[-1] == HOURS


def test_hours_that_were_forgotten_after_a_judgement_that_failed_take_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(LedgerLimits(hours=2), settle_ms=GRACE_MS)
    ledger.apply_all([*whole_way("clicks", range(2)), *signs(LATER_MS + ANEW_MS)])
    judge = new_judge(ledger)
    judge.judge(ALL, LATER_MS)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(Judge, "_judge_hour", Mock(side_effect=MemoryError))
        judge.judge(replace(ALL, described=frozenset(["hub"])), LATER_MS)
    ledger.apply_all(whole_way("clicks", range(2, 4)))
    judge.judge(ALL, LATER_MS)
    more = {HOUR + number * HOUR_MS: Amounts(first=100 + 10 * number, records=12) for number in (2, 3)}
    ledger.apply(report(Tier.BROKER, "east", TopicPartition("clicks", 0), more, created_ms=LATER_MS))
    ledger.take_touched()
    judged = [judge.judge(ALL, LATER_MS + minutes * ANEW_MS // 10) for minutes in range(11)][-1]
    assert told(judged) == told(new_judge(ledger).judge(ALL, LATER_MS + ANEW_MS))
