"""Every verdict, with each witness missing in turn: never exact, and the name of the witness in the verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.verdicts import EventLoss, Expectations, OffsetSpan, Route, Status, Witness
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import (
    EAST,
    EXPECTED,
    GRACE_MS,
    HOUR,
    HUB,
    LAKE,
    NOW_MS,
    Amounts,
    only_hour,
    report,
    signs,
)

SETTLED_MS = NOW_MS - 2 * GRACE_MS
SECOND, SECOND_HUB = TopicPartition("clicks", 1), TopicPartition("clicks", 4)
PLACES = [(EAST, HUB), (SECOND, SECOND_HUB)]
FULL = Amounts()
PACKED = Amounts(content=99, columns={"header_sum": FULL.content * 5, "none": 0, "zstd": 5, "bytes": 500})
LESS = Amounts(records=8, content=1_000)
ASIDE = Amounts(records=8, content=1_000, columns={"quarantined": 2})

Reports = list[CountReport]
ROUTES = tuple(Route(cluster="east", source=source, replica=replica) for source, replica in PLACES)
GAPS = tuple(replace(route, gaps=[OffsetSpan(first=108, last=109)]) for route in ROUTES)
ALL_EXPECTED = replace(EXPECTED, partitions={("east", "clicks"): 2, ("hub", "clicks"): 5}, routes=ROUTES)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A verdict with all witnesses: counts of the stages after the producers, and what is expected."""

    status: Status
    live: Amounts = FULL
    replica: Amounts = FULL
    loaded: Amounts = FULL
    routes: Sequence[Route] = ROUTES

    def reports(self) -> Reports:
        """Return the reports of all counters of two partitions, and their later life signs."""
        found = []
        for source, replica in PLACES:
            for tier, cluster, partition, amounts, options in (
                (Tier.PRODUCER, "east", source, FULL, {"instance": "p1", "revision": 1, "closed_ms": NOW_MS}),
                (Tier.BROKER, "east", source, self.live, {}),
                (Tier.MIRROR, "east", source, self.live, {"instance": "m1"}),
                (Tier.BROKER, "hub", replica, self.replica, {}),
                (Tier.LOAD, "hub", replica, self.loaded, {"name": LAKE}),
                (Tier.GROUP, "east", source, self.live, {"name": "billing", "instance": "g1"}),
            ):
                settings: dict[str, Any] = {"created_ms": SETTLED_MS, "end": 200, **options}
                found.append(report(tier, cluster, partition, {HOUR: amounts}, **settings))
        return [*found, *signs()]


CASES = {
    "exact": Case(status=Status.EXACT),
    "recompressed": Case(status=Status.RECOMPRESSED, replica=PACKED, loaded=PACKED),
    "explained": Case(status=Status.EXPLAINED, replica=LESS, loaded=LESS, routes=GAPS),
    "quarantined": Case(status=Status.QUARANTINED, loaded=ASIDE),
    "changed": Case(status=Status.CHANGED, replica=Amounts(content=5), loaded=Amounts(content=5)),
    "extra": Case(status=Status.EXTRA, loaded=Amounts(records=12, content=7)),
    "missing": Case(status=Status.MISSING, loaded=LESS),
}


def without(tier: Tier, cluster: str, partition: TopicPartition | None = None) -> Callable[[Reports], Reports]:
    """Return the loss of all that a tier of a cluster reports, of one partition or in all."""

    def lose(reports: Reports) -> Reports:
        return [
            one
            for one in reports
            if not (
                one.counter.tier is tier
                and one.counter.cluster == cluster
                and (partition is None or partition.partition in one.positions["partition"])
            )
        ]

    return lose


def silent(cluster: str, partition: TopicPartition) -> Callable[[Reports], Reports]:
    """Return that another broker led a partition, and has said nothing since the middle of the hour."""

    def change(reports: Reports) -> Reports:
        return [
            replace(one, process="2", created_ms=HOUR + HOUR_MS // 2)
            if one.counter.tier is Tier.BROKER
            and one.counter.cluster == cluster
            and partition.partition in one.positions["partition"]
            else one
            for one in reports
        ]

    return change


def life_silent(reports: Reports) -> Reports:
    """The producer's last sign was in the hour."""
    kept = []
    for one in reports:
        if one.counter.tier is Tier.PRODUCER:
            if not len(one.rows):
                continue
            assert one.life is not None
            at = HOUR + HOUR_MS // 2
            one = replace(one, created_ms=at, life=replace(one.life, closed_ms=at))
        kept.append(one)
    return kept


def life_open(reports: Reports) -> Reports:
    """The producer lives, and has records of the hour that it has not reported."""
    return [
        replace(one, life=replace(one.life, closed_ms=HOUR))
        if one.counter.tier is Tier.PRODUCER and one.life is not None
        else one
        for one in reports
    ]


def began_late(cluster: str) -> Callable[[Reports], Reports]:
    """Return that a counter lost its checkpoint, and its log begins in the hour."""

    def change(reports: Reports) -> Reports:
        changed = []
        for one in reports:
            if one.counter.tier is Tier.BROKER and one.counter.cluster == cluster and len(one.positions):
                positions = one.positions.copy()
                positions["counted_from"] = 100
                one = replace(one, positions=positions)
            changed.append(one)
        return changed

    return change


def behind(tier: Tier, name: str) -> Callable[[Reports], Reports]:
    """Return that a load or a group has not come to the records of one partition."""

    def lose(reports: Reports) -> Reports:
        gone = (SECOND if tier is Tier.GROUP else SECOND_HUB).partition
        return [
            one
            for one in reports
            if not (one.counter.tier is tier and one.counter.name == name and gone in one.positions["partition"])
        ]

    return lose


@dataclass(frozen=True, kw_only=True)
class Absence:
    """A witness that is missing: what changes, and how the verdict names it."""

    named: str
    of_reports: Callable[[Reports], Reports] = lambda reports: reports
    of_expectations: Callable[[Expectations], Expectations] = lambda expected: expected


def read_to(**times_ms: int | None) -> Callable[[Expectations], Expectations]:
    def change(expected: Expectations) -> Expectations:
        read: Mapping[str, int | None] = {**expected.read_to_ms, **times_ms}
        return replace(expected, read_to_ms={name: at for name, at in read.items() if at is not None})

    return change


def unknown(witness: Witness) -> Callable[[Expectations], Expectations]:
    return lambda expected: replace(expected, unknown=[witness])


MIRROR = Witness(name="selection of the mirror", reason="no mirror ever wrote it", cluster="hub")
TABLE = Witness(name="table of the mirror", reason="cannot be read", cluster="hub")
METADATA = Witness(name="metadata", reason="no answer", cluster="east", topic="clicks")
LOSS = Witness(name="events", reason="were deleted", cluster="east")
ABSENCES = {
    "live cluster never read": Absence(named="audit topic of east", of_expectations=read_to(east=None)),
    "hub never read": Absence(named="audit topic of hub", of_expectations=read_to(hub=None)),
    "live cluster read long ago": Absence(named="audit topic of east", of_expectations=read_to(east=HOUR + HOUR_MS)),
    "hub read long ago": Absence(named="audit topic of hub", of_expectations=read_to(hub=HOUR + HOUR_MS)),
    "live brokers never counted": Absence(
        named="broker of east that leads clicks-0", of_reports=without(Tier.BROKER, "east")
    ),
    "hub brokers never counted": Absence(
        named="broker of hub that leads clicks-3", of_reports=without(Tier.BROKER, "hub")
    ),
    "one partition's broker never counted": Absence(
        named="broker of east that leads clicks-1", of_reports=without(Tier.BROKER, "east", SECOND)
    ),
    "one replica's broker never counted": Absence(
        named="broker of hub that leads clicks-4", of_reports=without(Tier.BROKER, "hub", SECOND_HUB)
    ),
    "one partition's broker silent": Absence(
        named="broker of east that leads clicks-1", of_reports=silent("east", SECOND)
    ),
    "one replica's broker silent": Absence(
        named="broker of hub that leads clicks-4", of_reports=silent("hub", SECOND_HUB)
    ),
    "a partition that nobody reported": Absence(
        named="broker of east that leads clicks-2",
        of_expectations=lambda expected: replace(expected, partitions={("east", "clicks"): 3, ("hub", "clicks"): 5}),
    ),
    "number of partitions": Absence(
        named="metadata of east", of_expectations=lambda expected: replace(expected, partitions={})
    ),
    "selection of the mirror": Absence(named=MIRROR.name, of_expectations=unknown(MIRROR)),
    "table of the mirror": Absence(named=TABLE.name, of_expectations=unknown(TABLE)),
    "metadata of the topic": Absence(named=METADATA.name, of_expectations=unknown(METADATA)),
    "any mirror": Absence(named="mirror", of_expectations=lambda expected: replace(expected, mirrored=[], routes=[])),
    "lost events": Absence(
        named="events",
        of_expectations=lambda expected: replace(
            expected, losses=[EventLoss(cluster="east", before_ms=HOUR + 1, witness=LOSS)]
        ),
    ),
    "silent life": Absence(named="producer p1 on web-1", of_reports=life_silent),
    "open life": Absence(named="producer p1 on web-1", of_reports=life_open),
    "live checkpoint": Absence(named="counter of clicks-0 in east", of_reports=began_late("east")),
    "replica checkpoint": Absence(named="counter of clicks-3 in hub", of_reports=began_late("hub")),
    "load": Absence(named="loaded", of_reports=behind(Tier.LOAD, LAKE)),
    "group": Absence(named="consumed:billing", of_reports=behind(Tier.GROUP, "billing")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_with_all_witnesses_the_verdict_is_the_case(case: Case) -> None:
    assert only_hour(case.reports(), **vars_of(replace(ALL_EXPECTED, routes=case.routes))).status is case.status


def vars_of(expected: Expectations) -> dict[str, Any]:
    """Return the fields of expectations, as changes of others."""
    return {name: getattr(expected, name) for name in Expectations.__dataclass_fields__}


@pytest.mark.parametrize("absence", ABSENCES.values(), ids=list(ABSENCES))
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_verdict_without_a_witness_is_never_exact_and_names_it(case: Case, absence: Absence) -> None:
    reports = absence.of_reports(case.reports())
    expected = absence.of_expectations(replace(ALL_EXPECTED, routes=case.routes))
    hour = only_hour(reports, **vars_of(expected))
    assert hour.status not in (Status.EXACT, Status.RECOMPRESSED, Status.EXPLAINED, Status.QUARANTINED)
    told = [str(witness) for witness in hour.missing_witnesses] + [finding.text for finding in hour.findings]
    assert any(absence.named in text for text in told), told
    assert not hour.rests_on


def test_a_witness_that_only_later_hours_need_is_not_missing_before() -> None:
    late = replace(METADATA, since_ms=HOUR + HOUR_MS)
    hour = only_hour(CASES["exact"].reports(), **vars_of(unknown(late)(ALL_EXPECTED)))
    assert hour.status is Status.EXACT
    other = replace(METADATA, topic="views")
    hour = only_hour(CASES["exact"].reports(), **vars_of(unknown(other)(ALL_EXPECTED)))
    assert hour.status is Status.EXACT
