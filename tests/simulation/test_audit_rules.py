"""The rules of the audit's word, on made-up cases."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.audit.events.report import LifeSign
from pipeline.audit.judgement.verdicts import AuditedHour, Finding, Stage, Status, Witness
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from pipeline.testing.simulation.audits.verdict_rules import (
    ExactMoment,
    FinalRules,
    KnownBatch,
    SourceTruth,
    is_wrong_clock,
    moment_problems,
)
from pipeline.testing.simulation.audits.word_rules import AcceptedRecords
from pipeline.testing.simulation.mirrors.journals import SourceName
from pipeline.testing.simulation.mirrors.logs import BatchIdentity, Explained

SOURCE = SourceName("east", TopicPartition("orders", 0), None)
A, B = BatchIdentity(0, 4, 11), BatchIdentity(5, 9, 12)
HOUR = 100 * HOUR_MS


def known(batch: BatchIdentity, acknowledged_ms: int | None = HOUR) -> KnownBatch:
    return KnownBatch(source=SOURCE, batch=batch, hour_ms=HOUR, records=5, acknowledged_ms=acknowledged_ms)


def truth(
    kept: list[KnownBatch], promised: list[KnownBatch], arrived: dict[BatchIdentity, float], gaps: Any = ()
) -> dict[SourceName, SourceTruth]:
    found = SourceTruth(
        kept=kept,
        kept_as_sent=frozenset(one.batch for one in kept),
        promised=promised,
        start=0,
        replica=[known(batch) for batch in arrived],
        arrived_s=arrived,
        explained=Explained(gaps),
    )
    return {SOURCE: found}


@pytest.mark.parametrize(
    ("arrived", "gaps", "wall_ms", "problems"),
    [
        ({A: 1.0, B: 2.0}, (), HOUR + HOUR_MS, 0),
        ({A: 1.0, B: 4.0}, (), HOUR + HOUR_MS, 1),
        ({A: 1.0}, (), HOUR + HOUR_MS, 1),
        ({A: 1.0}, ((5, 9),), HOUR + HOUR_MS, 0),
        ({A: 1.0, B: 2.0}, (), HOUR + HOUR_MS - 1, 1),
    ],
    ids=["arrived", "arrived later", "never arrived", "in the ledger of gaps", "not over"],
)
def test_an_hour_is_exact_only_once_it_is_over_and_all_of_it_has_arrived(
    arrived: dict[BatchIdentity, float], gaps: Any, wall_ms: int, problems: int
) -> None:
    moment = ExactMoment(topic="orders", hour_ms=HOUR, time_s=3.0, wall_ms=wall_ms)
    truths = truth([known(A), known(B)], [], arrived, gaps)
    assert len(list(moment_problems([moment], truths))) == problems


@pytest.mark.parametrize("acknowledged_ms", [None, HOUR + HOUR_MS])
def test_records_that_came_after_the_hour_do_not_count(acknowledged_ms: int | None) -> None:
    moment = ExactMoment(topic="orders", hour_ms=HOUR, time_s=3.0, wall_ms=HOUR + HOUR_MS)
    truths = truth([known(A), known(B, acknowledged_ms)], [], {A: 1.0})
    assert not list(moment_problems([moment], truths))


def test_what_a_producer_that_counts_was_told_must_have_arrived_though_the_source_lost_it() -> None:
    moment = ExactMoment(topic="orders", hour_ms=HOUR, time_s=3.0, wall_ms=HOUR + HOUR_MS)
    assert len(list(moment_problems([moment], truth([known(A)], [known(A), known(B)], {A: 1.0})))) == 1


WITNESS = Witness(name="producer x", reason="is silent")


def hour(status: Status, *, has_witness: bool = False) -> AuditedHour:
    finding = Finding(
        cluster="east",
        source=SOURCE.partition,
        replica=None,
        hour_ms=HOUR,
        after=Stage(tier="produced"),
        at=Stage(tier="live"),
        status=status,
        records=5,
    )
    witnesses = [WITNESS] if has_witness else []
    return AuditedHour(
        topic="orders", hour_ms=HOUR, status=status, stages={}, findings=[finding], missing_witnesses=witnesses
    )


WHOLE = truth([known(A), known(B)], [known(A), known(B)], {A: 1.0, B: 1.0})
LOST = truth([known(A)], [known(A), known(B)], {A: 1.0})
SURPLUS = truth([known(A)], [], {A: 1.0, B: 1.0})
NOT_COPIED = truth([known(A), known(B)], [], {A: 1.0})


@pytest.mark.parametrize(
    ("status", "has_witness", "truths", "reasons", "problems"),
    [
        (Status.EXACT, False, WHOLE, [], 0),
        (Status.PENDING, False, WHOLE, [], 1),
        (Status.MISSING, False, WHOLE, [], 1),
        (Status.CHANGED, False, WHOLE, [], 1),
        (Status.UNKNOWN, True, WHOLE, [], 1),
        (Status.UNKNOWN, True, WHOLE, ["a producer was killed"], 0),
        (Status.UNKNOWN, False, WHOLE, ["a producer was killed"], 1),
        (Status.EXACT, False, LOST, [], 1),
        (Status.EXPLAINED, False, LOST, [], 1),
        (Status.PENDING, False, LOST, [], 1),
        (Status.MISSING, False, LOST, [], 0),
        (Status.EXACT, False, SURPLUS, [], 1),
        (Status.EXTRA, False, SURPLUS, [], 0),
        (Status.EXACT, False, NOT_COPIED, [], 1),
        (Status.MISSING, False, NOT_COPIED, [], 0),
    ],
)
def test_the_verdict_at_the_end_is_the_truth(
    status: Status, has_witness: bool, truths: dict[SourceName, SourceTruth], reasons: list[str], problems: int
) -> None:
    rules = FinalRules(may_explain=False, may_recompress=False, reasons=reasons)
    assert len(list(rules.problems([hour(status, has_witness=has_witness)], truths))) == problems


COUNTER = Witness(name="counter of orders-0 in east", reason="began late", cluster="east", partition=SOURCE.partition)


@pytest.mark.parametrize(
    ("witnesses", "shortened", "problems"),
    [
        ([COUNTER], {("east", SOURCE.partition)}, 0),
        ([COUNTER, WITNESS], {("east", SOURCE.partition)}, 1),
        ([COUNTER], {("west", SOURCE.partition), ("east", TopicPartition("orders", 1))}, 1),
        ([COUNTER], set(), 1),
    ],
)
def test_a_counter_may_not_know_what_was_deleted(
    witnesses: list[Witness], shortened: set[tuple[str | None, TopicPartition | None]], problems: int
) -> None:
    rules = FinalRules(may_explain=False, may_recompress=False, reasons=[], shortened=frozenset(shortened))
    doubtful = replace(hour(Status.UNKNOWN), missing_witnesses=witnesses)
    assert len(list(rules.problems([doubtful], WHOLE))) == problems


@pytest.mark.parametrize(("names_clock", "wrong", "problems"), [(True, "hub", 0), (True, "east", 1), (False, "hub", 1)])
def test_a_wrong_clock_is_named(names_clock: bool, wrong: str, problems: int) -> None:
    clock = Witness(name="clock of the brokers of hub", reason="it is 65 s ahead", cluster="hub")
    rules = FinalRules(may_explain=False, may_recompress=False, reasons=[], wrong_clocks=frozenset([wrong]))
    doubtful = replace(hour(Status.UNKNOWN), missing_witnesses=[WITNESS, *([clock] if names_clock else [])])
    assert len(list(rules.problems([doubtful], WHOLE))) == problems


@pytest.mark.parametrize(
    ("status", "problems"), [(Status.UNKNOWN, 0), (Status.EXACT, 0), (Status.MISSING, 1), (Status.PENDING, 1)]
)
def test_an_hour_of_which_brokers_lost_batches_may_be_unknown(status: Status, problems: int) -> None:
    truths = {source: replace(each, lost_hours=frozenset([HOUR])) for source, each in WHOLE.items()}
    rules = FinalRules(may_explain=False, may_recompress=False, reasons=[])
    assert len(list(rules.problems([hour(status, has_witness=True)], truths))) == problems


def test_an_hour_with_records_has_a_verdict() -> None:
    rules = FinalRules(may_explain=False, may_recompress=False, reasons=[])
    assert len(list(rules.problems([], WHOLE))) == 1


def sign(closed_ms: int, *, host: str = "producer", started_ms: int = HOUR) -> LifeSign:
    return LifeSign(host=host, started_ms=started_ms, interval_ms=1000, closed_ms=closed_ms)


@pytest.mark.parametrize(
    ("told", "broken"),
    [
        (sign(HOUR + 500), 0),
        (sign(HOUR + 501), 1),
        (sign(HOUR + 901), 2),
        (sign(HOUR + 901, host="another"), 0),
        (sign(HOUR + 901, started_ms=HOUR - 1), 0),
    ],
    ids=["all before", "one of two", "both", "of another producer", "of the life before"],
)
def test_a_life_sign_closes_no_time_at_which_a_record_without_outcome_was_accepted(told: LifeSign, broken: int) -> None:
    accepted = AcceptedRecords("producer", HOUR)
    for value, now_ms in ((b"a", HOUR + 500), (b"b", HOUR + 900)):
        accepted.offered(value)
        accepted.accepted(value, now_ms)
    assert len(list(accepted.broken_by(told))) == broken


def test_a_life_sign_may_close_what_has_an_outcome_or_was_not_accepted_yet() -> None:
    accepted = AcceptedRecords("producer", HOUR)
    for value in (b"ended", b"ended at once", b"offered"):
        accepted.offered(value)
    accepted.has_outcome(b"ended at once")
    accepted.accepted(b"ended at once", HOUR)
    accepted.accepted(b"ended", HOUR)
    accepted.has_outcome(b"ended")
    assert not list(accepted.broken_by(sign(HOUR + 5000)))


@pytest.mark.parametrize(
    ("error_ms", "is_wrong"), [(0, False), (60_000, False), (60_001, True), (-300_000, False), (-599_370, True)]
)
def test_clocks_are_wrong_that_the_audit_may_name(error_ms: int, is_wrong: bool) -> None:
    assert is_wrong_clock(error_ms) == is_wrong
