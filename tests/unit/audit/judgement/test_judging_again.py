"""Judging again: a judge that has judged before comes to the verdicts of a new one, whatever changes."""

from collections import Counter as NumbersByStatus
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Counter, Tier
from pipeline.audit.judgement import ways
from pipeline.audit.judgement.findings import MAX_WAITING
from pipeline.audit.judgement.judge import DIFFERING, LETTERS, Judge, Judgement
from pipeline.audit.judgement.missing_words import name_of_clock
from pipeline.audit.judgement.verdicts import EventLoss, Expectations, OffsetSpan, Route, Status, Witness
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.ledger.limits import LedgerLimits
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import EXPECTED, GRACE_MS, HOUR, NOW_MS, PENDING_MAX_MS, Amounts, report, signs
from tests.support.memory_shelf import MemoryShelf

TOPICS = ("clicks", "views", "orders")
CLUSTERS = ("east", "west")
WITNESS = Witness(name="mirror", reason="is away")
Change = Callable[[Expectations], Expectations]


def hub_of(cluster: str, topic: str) -> TopicPartition:
    return TopicPartition(f"{cluster}.{topic}", 0)


ROUTES = tuple(
    Route(cluster=cluster, source=TopicPartition(topic, 0), replica=hub_of(cluster, topic))
    for cluster in CLUSTERS
    for topic in TOPICS
)
ALL = replace(
    EXPECTED,
    live_clusters=list(CLUSTERS),
    partitions={(cluster, topic): 1 for cluster in CLUSTERS for topic in TOPICS}
    | {("hub", hub_of(cluster, topic).topic): 1 for cluster in CLUSTERS for topic in TOPICS},
    mirrored=[],
    routes=ROUTES,
    read_to_ms=dict.fromkeys((*CLUSTERS, "hub"), NOW_MS),
)
CHANGES: dict[str, Change] = {
    "nothing": lambda known: known,
    "a witness of all": lambda known: replace(known, unknown=[WITNESS]),
    "a witness of a cluster": lambda known: replace(known, unknown=[replace(WITNESS, cluster="west")]),
    "a witness of a topic": lambda known: replace(known, unknown=[replace(WITNESS, cluster="east", topic="views")]),
    "a witness of late hours": lambda known: replace(known, unknown=[replace(WITNESS, since_ms=HOUR + HOUR_MS)]),
    "a wrong clock": lambda known: replace(
        known, unknown=[Witness(name=name_of_clock("east"), reason="is ahead", cluster="east", since_ms=NOW_MS)]
    ),
    "no witness": lambda known: replace(known, unknown=[]),
    "a loss": lambda known: replace(
        known, losses=[EventLoss(cluster="east", before_ms=HOUR + 1, witness=replace(WITNESS, name="events"))]
    ),
    "no loss": lambda known: replace(known, losses=[]),
    "a partition more": lambda known: replace(known, partitions={**known.partitions, ("east", "clicks"): 2}),
    "a topic less": lambda known: replace(
        known, partitions={key: count for key, count in known.partitions.items() if key != ("west", "orders")}
    ),
    "all partitions": lambda known: replace(known, partitions=ALL.partitions),
    "a compacted topic": lambda known: replace(known, compacted=frozenset([("east", "orders")])),
    "no compacted topic": lambda known: replace(known, compacted=frozenset()),
    "a gap": lambda known: replace(
        known, routes=[replace(ROUTES[0], gaps=[OffsetSpan(first=100, last=109)]), *ROUTES[1:]]
    ),
    "a route less": lambda known: replace(known, routes=ROUTES[1:]),
    "all routes": lambda known: replace(known, routes=ROUTES),
    "no metadata of a cluster": lambda known: replace(
        known, partitions={key: count for key, count in known.partitions.items() if key[0] != "west"}
    ),
}


def filled(random: Random) -> Ledger:
    ledger = Ledger(LedgerLimits(rows=0, newest=0), settle_ms=GRACE_MS, shelf=MemoryShelf())
    for cluster in CLUSTERS:
        for topic in TOPICS:
            source = TopicPartition(topic, 0)
            for number in range(3):
                if random.random() < 0.2:
                    continue
                less = Amounts(records=8, content=1_000) if random.random() < 0.2 else Amounts()
                rows = {HOUR + number * HOUR_MS: Amounts()}
                closed_ms, instance = NOW_MS + 9 * HOUR_MS, f"p-{cluster}"
                ledger.apply(
                    report(Tier.PRODUCER, cluster, source, rows, instance=instance, revision=1, closed_ms=closed_ms)
                )
                ledger.apply(report(Tier.BROKER, cluster, source, rows))
                copied = {HOUR + number * HOUR_MS: less}
                ledger.apply(report(Tier.BROKER, "hub", hub_of(cluster, topic), copied))
    ledger.shelve()
    return ledger


def assert_counted(judgement: Judgement) -> None:
    """Numbers and differing hours are those of the hours."""
    hours = judgement.hours()
    assert judgement.numbers_by_status() == NumbersByStatus(hour.status for hour in hours)
    letters = {
        (name, hour_ms): letter for name, hours in judgement.letters_by_topic() for hour_ms, letter in hours.items()
    }
    assert letters == {(hour.topic, hour.hour_ms): LETTERS[hour.status] for hour in hours}
    by_status = judgement.topics_by_status()
    assert {
        (name, hour): status for hour, found in by_status.items() for status, names in found.items() for name in names
    } == {(hour.topic, hour.hour_ms): hour.status for hour in hours}
    differing = {(hour.topic, hour.hour_ms) for hour in hours if hour.status in DIFFERING}
    assert {(topic, hour) for topic, hours in judgement.differing_hours().items() for hour in hours} == differing


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_a_judge_that_has_judged_before_comes_to_the_verdicts_of_a_new_one(seed: int) -> None:
    random = Random(seed)
    ledger, expected = filled(random), ALL
    now_ms = NOW_MS + 4 * HOUR_MS
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    for _ in range(12):
        name = random.choice(sorted(CHANGES))
        expected = CHANGES[name](replace(expected, read_to_ms=dict.fromkeys((*CLUSTERS, "hub"), now_ms)))
        if random.random() < 0.3:
            cluster, topic, number = random.choice(CLUSTERS), random.choice(TOPICS), random.randrange(3)
            rows = {HOUR + number * HOUR_MS: Amounts(records=12, content=2_000)}
            ledger.apply(report(Tier.BROKER, "hub", hub_of(cluster, topic), rows, revision=112, created_ms=now_ms))
        again = judge.judge(expected, now_ms)
        new = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS).judge(expected, now_ms)
        assert again.hours() == new.hours(), name
        assert_counted(again)
        assert again.watermarks() == new.watermarks(), name
        assert list(again.letters_by_topic()) == list(new.letters_by_topic()), name
        ledger.shelve()


def test_plain_hours_are_unknown_while_a_witness_is_missing_and_exact_when_it_is_back() -> None:
    ledger = filled(Random(1))
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    now_ms = NOW_MS + 4 * HOUR_MS
    expected = replace(ALL, read_to_ms=dict.fromkeys((*CLUSTERS, "hub"), now_ms))
    before = judge.judge(expected, now_ms)
    exact = [hour for hour in before.hours() if hour.status is Status.EXACT]
    assert exact
    without = judge.judge(replace(expected, unknown=[WITNESS]), now_ms)
    for hour in exact:
        (found,) = without.hours_at([(hour.topic, hour.hour_ms)])
        assert (found.status, found.missing_witnesses, found.rests_on) == (Status.UNKNOWN, (WITNESS,), ())
        assert found.stages == hour.stages
    assert judge.judge(expected, now_ms).hours() == before.hours()
    assert all(hour.status is Status.EXACT for hour in before.hours_at([(each.topic, each.hour_ms) for each in exact]))


def test_of_very_many_partitions_that_wait_for_a_cluster_one_finding_stands_for_those_beyond_a_bound() -> None:
    ledger = Ledger(LedgerLimits(rows=0, newest=0), settle_ms=GRACE_MS, shelf=MemoryShelf())
    partitions = [TopicPartition("clicks", number) for number in range(40)]
    replica = hub_of("east", "clicks").topic
    for each in partitions:
        ledger.apply(report(Tier.BROKER, "east", each, {HOUR: Amounts()}))
        if each.partition < 10:
            copy = TopicPartition(replica, each.partition)
            ledger.apply(report(Tier.BROKER, "hub", copy, {HOUR: Amounts()}, created_ms=HOUR + 600_000))
    expected = replace(
        ALL,
        live_clusters=["east"],
        partitions={("east", "clicks"): 40, ("hub", replica): 40},
        routes=[
            Route(cluster="east", source=each, replica=TopicPartition(replica, each.partition)) for each in partitions
        ],
        read_to_ms={"east": NOW_MS, "hub": HOUR + 600_000},
    )
    judgement = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS).judge(expected, NOW_MS)
    (hour,) = judgement.hours()
    assert hour.status is Status.UNKNOWN
    waiting = [finding for finding in hour.findings if finding.at.tier == "replica"]
    assert len(waiting) == MAX_WAITING + 1
    assert sum(finding.records for finding in waiting) == 30 * Amounts().records
    assert "the same is true of 9 more partitions, with 90 records" in waiting[-1].text
    found = judgement.partitions_of("clicks", HOUR)
    assert [each.status for each in found] == [Status.UNKNOWN] * 40


def test_hours_that_a_dead_producer_had_closed_take_as_little_memory_as_others() -> None:
    ledger = Ledger(LedgerLimits(rows=0, newest=0), settle_ms=GRACE_MS, shelf=MemoryShelf())
    hours = [HOUR + number * HOUR_MS for number in range(3)]
    rows = dict.fromkeys(hours, Amounts())
    died_ms, now_ms = hours[2] + 600_000, hours[2] + 3 * HOUR_MS
    source, replica = TopicPartition("clicks", 0), hub_of("east", "clicks")
    ledger.apply(
        report(Tier.PRODUCER, "east", source, rows, instance="p", revision=1, created_ms=died_ms, closed_ms=hours[2])
    )
    ledger.apply(report(Tier.BROKER, "east", source, rows, created_ms=now_ms))
    ledger.apply(report(Tier.BROKER, "hub", replica, rows, created_ms=now_ms))
    expected = replace(
        ALL,
        live_clusters=["east"],
        partitions={("east", "clicks"): 1, ("hub", replica.topic): 1},
        routes=[Route(cluster="east", source=source, replica=replica)],
        read_to_ms=dict.fromkeys(("east", "hub"), now_ms),
    )
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    found = judge.judge(expected, now_ms).hours()
    assert [hour.status for hour in found] == [Status.EXACT, Status.EXACT, Status.UNKNOWN]
    assert [len(judge._verdicts[hour_ms].others) for hour_ms in hours] == [0, 0, 1]


def test_an_hour_that_was_not_read_to_its_end_is_judged_again_when_it_is() -> None:
    ledger = filled(Random(1))
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    now_ms = NOW_MS + 4 * HOUR_MS
    early = replace(ALL, read_to_ms=dict.fromkeys((*CLUSTERS, "hub"), HOUR + HOUR_MS + 2 * GRACE_MS))
    assert {hour.hour_ms for hour in judge.judge(early, now_ms).hours() if hour.status is Status.EXACT} <= {HOUR}
    late = report(
        Tier.PRODUCER, "east", TopicPartition("clicks", 0), {}, instance="p-late", closed_ms=HOUR, created_ms=NOW_MS
    )
    ledger.apply(late)
    expected = replace(ALL, read_to_ms=dict.fromkeys((*CLUSTERS, "hub"), now_ms))
    new = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    assert judge.judge(expected, now_ms).hours(from_ms=HOUR + HOUR_MS) == new.judge(expected, now_ms).hours(
        from_ms=HOUR + HOUR_MS
    )


@pytest.mark.parametrize("names_topic", [True, False])
def test_an_hour_that_a_producer_opened_again_before_it_fell_silent_is_exact_no_more(names_topic: bool) -> None:
    """The judge learns of the sign and of the silence at once, as the audit topic could not be read for a while."""
    ledger = filled(Random(1))
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    now_ms = NOW_MS + 4 * HOUR_MS
    expected = replace(ALL, read_to_ms=dict.fromkeys((*CLUSTERS, "hub"), now_ms))
    exact = [hour for hour in judge.judge(expected, now_ms).hours(topic="clicks") if hour.status is Status.EXACT]
    assert exact
    sign = report(
        Tier.PRODUCER, "east", TopicPartition("clicks", 0), {}, instance="p", closed_ms=HOUR, created_ms=now_ms
    )
    ledger.apply(sign if names_topic else replace(sign, topics=[]))
    later_ms = now_ms + HOUR_MS
    expected = replace(ALL, read_to_ms=dict.fromkeys((*CLUSTERS, "hub"), later_ms))
    found = judge.judge(expected, later_ms)
    new = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS).judge(expected, later_ms)
    assert found.hours() == new.hours() and found.watermarks() == new.watermarks()
    assert {hour.status for hour in found.hours_at([(each.topic, each.hour_ms) for each in exact])} == {Status.UNKNOWN}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_topics_judged_in_portions_have_the_same_verdicts_and_watermarks(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, now_ms = filled(Random(seed)), NOW_MS + 4 * HOUR_MS
    windows = {HOUR + HOUR_MS + number * 600_000: Amounts(records=10 - seed % 2) for number in range(3)}
    for cluster, topic in (("east", "clicks"), ("west", "views")):
        ledger.apply(report(Tier.BROKER, cluster, TopicPartition(topic, 0), {}, windows=windows))
    expected = replace(ALL, read_to_ms=dict.fromkeys((*CLUSTERS, "hub"), now_ms))
    whole = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS).judge(expected, now_ms)
    monkeypatch.setattr(ways, "MAX_CELLS_AT_ONCE", 1)
    portions = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS).judge(expected, now_ms)
    assert portions.hours() == whole.hours()
    assert portions.watermarks() == whole.watermarks()
    assert len(whole.watermarks()) == len(TOPICS)


@pytest.mark.parametrize("cluster", ["east", "hub"])
def test_an_hour_waits_again_if_its_leader_had_led_no_more_when_it_spoke(cluster: str) -> None:
    ledger = filled(Random(1))
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    now_ms = NOW_MS + 4 * HOUR_MS
    expected = replace(ALL, read_to_ms=dict.fromkeys((*CLUSTERS, "hub"), now_ms))
    partition = TopicPartition("clicks", 0) if cluster == "east" else hub_of("east", "clicks")
    led_to_ms = HOUR + HOUR_MS - GRACE_MS
    for one in (
        report(Tier.BROKER, cluster, partition, {}, process="2", epoch=1, created_ms=led_to_ms, end=110),
        replace(signs(now_ms - 1)[0], counter=Counter(tier=Tier.BROKER, cluster=cluster), process="2"),
    ):
        ledger.apply(one)
    (before,) = judge.judge(expected, now_ms).hours_at([("clicks", HOUR)])
    assert before.status is Status.EXACT
    left = report(Tier.BROKER, cluster, partition, {}, process="2", is_leader=False, created_ms=now_ms, end=110)
    ledger.apply(left)
    found = judge.judge(expected, now_ms)
    new = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS).judge(expected, now_ms)
    assert found.hours() == new.hours() and found.watermarks() == new.watermarks()
    (hour,) = found.hours_at([("clicks", HOUR)])
    assert hour.status is Status.UNKNOWN


def word(random: Random, now_ms: int) -> CountReport:
    """Return what a producer or broker may say at any time: a sign, an end, counts, that it leads or leads no more."""
    cluster, topic = random.choice(CLUSTERS), random.choice(TOPICS)
    created_ms = now_ms - random.choice((0, 0, 100_000))
    closed_ms = min(created_ms, HOUR + random.choice((-1, 0, 1, 2, 3, 9)) * HOUR_MS + random.choice((0, 1)))
    if random.random() < 0.5:
        said = report(
            Tier.PRODUCER,
            cluster,
            TopicPartition(topic, 0),
            {},
            instance=random.choice(("p1", "p2", f"p-{cluster}")),
            created_ms=created_ms,
            closed_ms=closed_ms,
            interval_ms=random.choice((10_000, 300_000)),
            is_ended=random.random() < 0.3,
        )
        return replace(said, topics=[]) if random.random() < 0.2 else said
    of_hub = random.random() < 0.5
    return report(
        Tier.BROKER,
        "hub" if of_hub else cluster,
        hub_of(cluster, topic) if of_hub else TopicPartition(topic, 0),
        {HOUR + random.randrange(3) * HOUR_MS: Amounts()} if random.random() < 0.3 else {},
        process=random.choice("12"),
        created_ms=created_ms,
        end=110,
        epoch=random.randrange(2),
        is_leader=random.random() < 0.5,
        has_life=random.random() < 0.5,
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_words_that_are_given_and_taken_back_lead_to_the_verdicts_of_a_new_judge(seed: int) -> None:
    random = Random(seed)
    ledger, now_ms = filled(random), NOW_MS + 4 * HOUR_MS
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    for _ in range(20):
        now_ms += random.choice((1_000, 5_000, 30_000, 200_000))
        ledger.apply(word(random, now_ms))
        if random.random() < 0.3:
            continue
        expected = replace(ALL, read_to_ms=dict.fromkeys((*CLUSTERS, "hub"), now_ms))
        again = judge.judge(expected, now_ms)
        new = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS).judge(expected, now_ms)
        assert again.hours() == new.hours()
        assert_counted(again)
        assert again.watermarks() == new.watermarks()
