"""The ledger: the same state whatever the order and number of reports, and the state of a plain reference."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.events.encoding import decode_count_report, encode_count_report, portions
from pipeline.audit.events.report import (
    OLDER,
    POSITION,
    ROW,
    CountReport,
    LatencyCounts,
    LifeSign,
    ReportedTopic,
    RowClaim,
    SkippedOffsets,
)
from pipeline.audit.events.tiers import Counter, Tier
from pipeline.audit.ledger.keys import cell_key, row_key
from pipeline.audit.ledger.ledger import Ledger, SeriesKey
from pipeline.audit.ledger.limits import LedgerLimits
from pipeline.audit.ledger.row_table import ABSENT, HOUR_ROW, RowTable
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import EAST, HOUR, Amounts, report

Key = tuple[Tier, str, str, str, str, int, int]
"""Tier, cluster, name, topic, id of the topic or life, partition, start of the hour."""


@dataclass
class Reference:
    """A ledger as one would write it without columns: invariants A and B, one row at a time."""

    rows: dict[Key, Any] = field(default_factory=dict)
    claims: dict[tuple[str, str, str, int], set[tuple[int, int]]] = field(default_factory=dict)

    def apply(self, event: CountReport) -> None:
        counter = event.counter
        for claim in event.claims:
            topic = event.topics[claim.topic]
            mine = self.claims.setdefault((counter.cluster, topic.name, topic.topic_id, claim.partition), set())
            mine.add((claim.leader_epoch, claim.start_offset))
        for row in event.rows:
            topic = event.topics[int(row["topic"])]
            life = counter.instance if counter.tier.has_lives else topic.topic_id
            if row["span_ms"] == HOUR_MS:
                place = (topic.name, life, int(row["partition"]), int(row["start_ms"]))
                key = (counter.tier, counter.cluster, counter.name, *place)
                known = self.rows.get(key)
                if known is None or self._order(counter.tier, row, event) > self._order(counter.tier, *known):
                    self.rows[key] = (row, event)

    def _order(self, tier: Tier, row: Any, event: CountReport) -> Any:
        rest = tuple(int(row[name]) for name in ROW.names or ())
        if tier is Tier.BROKER:
            return (int(row["records"]), bool(row["has_sums"]), int(row["revision"]), event.created_ms, rest)
        return (int(row["revision"]), event.created_ms, int(row["records"]), rest)


def state(ledger: Ledger) -> dict[Key, tuple[int, int]]:
    """Return records and revision of each row of an hour, by its key."""
    found: dict[Key, tuple[int, int]] = {}
    for (tier, cluster, name), series in ledger.series.items():
        for start, table in series.hours.items():
            for key, row in zip(table.keys.tolist(), table.rows, strict=True):
                topic, partition, life = key >> 43, (key >> 26) & (2**17 - 1), key & (2**26 - 1)
                place = (ledger.topics.names[topic], ledger.life_names.names[life], partition, start)
                if row["revision"] != ABSENT:
                    found[tier, cluster, name, *place] = (int(row["records"]), int(row["revision"]))
    return found


@st.composite
def count_reports(draw: st.DrawFn) -> CountReport:
    """Return a report of a counter: several topics, partitions and hours."""
    tier = draw(st.sampled_from([Tier.PRODUCER, Tier.BROKER, Tier.LOAD]))
    topics = [ReportedTopic(name, draw(st.sampled_from(["", "id-1"]))) for name in ("clicks", "views")]
    size = draw(st.integers(0, 4))
    rows = np.zeros(size, ROW)
    for row in rows:
        row["topic"] = draw(st.integers(0, 1))
        row["partition"] = draw(st.integers(0, 2))
        row["span_ms"] = draw(st.sampled_from([HOUR_MS, HOUR_MS, 600_000]))
        row["start_ms"] = draw(st.sampled_from([OLDER, HOUR, HOUR + HOUR_MS, -HOUR_MS]))
        row["revision"] = draw(st.integers(0, 5))
        row["records"] = draw(st.integers(0, 5))
        row["content_sum"] = draw(st.integers(0, 2))
        row["has_sums"] = draw(st.booleans())
    positions = np.zeros(draw(st.integers(0, 2)), POSITION)
    for number, position in enumerate(positions):
        position["partition"] = number
        position["end_offset"] = draw(st.integers(0, 9))
        position["is_leader"] = draw(st.booleans())
    instance = draw(st.sampled_from(["a", "b"])) if tier.has_lives else ""
    created_ms = HOUR + draw(st.integers(0, 5))
    return CountReport(
        counter=Counter(tier=tier, cluster="east", name="/lake" if tier is Tier.LOAD else "", instance=instance),
        process=instance or "1",
        created_ms=created_ms,
        window_ms=600_000,
        topics=topics,
        rows=rows,
        positions=positions,
        life=LifeSign(host="h", started_ms=0, interval_ms=10_000, closed_ms=created_ms, is_ended=draw(st.booleans())),
    )


def progress(ledger: Ledger) -> dict[Any, Any]:
    """Return how far each partition was counted, by names."""
    found = {}
    for name, series in ledger.series.items():
        ends = zip(series.positions.keys.tolist(), series.positions.progress["end_offset"].tolist(), strict=True)
        for key, end in ends:
            life = ledger.life_names.names[key & (2**26 - 1)]
            found[name, ledger.topics.names[key >> 43], (key >> 26) & (2**17 - 1), life] = end
    return found


def lives(ledger: Ledger) -> dict[Any, Any]:
    return {
        (name, process): (life.seen_ms, life.sign, life.topics)
        for name, of_series in ledger.lives.items()
        for process, life in of_series.items()
    }


@given(st.lists(count_reports(), max_size=8), st.randoms(use_true_random=False))
def test_order_and_repetition_of_reports_change_nothing(reports: Sequence[CountReport], randomness: Random) -> None:
    reference, ledger, shuffled = Reference(), Ledger(), Ledger()
    again = [*reports, *randomness.sample(list(reports), len(reports) // 2)]
    randomness.shuffle(again)
    for one in reports:
        reference.apply(one)
        ledger.apply(one)
    for one in again:
        shuffled.apply(one)
    expected = {key: (int(row["records"]), int(row["revision"])) for key, (row, _) in reference.rows.items()}
    assert state(ledger) == expected
    assert state(shuffled) == expected
    assert progress(ledger) == progress(shuffled)
    assert lives(ledger) == lives(shuffled)
    assert ledger.refused == 0 or any(len(one.rows) for one in reports)


@given(st.lists(count_reports(), max_size=5))
def test_reports_in_portions_and_on_the_wire_are_the_same(reports: Sequence[CountReport]) -> None:
    whole, parts = Ledger(), Ledger()
    for one in reports:
        whole.apply(one)
        for portion in portions(one):
            parts.apply(decode_count_report(encode_count_report(portion)))
    assert state(whole) == state(parts)
    assert progress(whole) == progress(parts)


def broker(records: int, revision: int, *, epoch: int = 0, **options: Any) -> CountReport:
    amounts = Amounts(records=records, first=0)
    return report(Tier.BROKER, "east", EAST, {HOUR: amounts}, revision=revision, epoch=epoch, end=revision, **options)


def records_of(ledger: Ledger, cluster: str = "east", tier: Tier = Tier.BROKER) -> int | None:
    table = ledger.series[SeriesKey(tier, cluster)].hours.get(HOUR)
    if table is None:
        return None
    row = table.at(np.array([row_key(0, 0, int(table.keys[0]) & (2**26 - 1))], np.int64))[0]
    return None if row["revision"] == ABSENT else int(row["records"])


LOST, CLAIM = broker(12, 12), broker(10, 10, epoch=1, claims=[(1, 10)])


@pytest.mark.parametrize("reports", [[LOST, CLAIM], [CLAIM, LOST]], ids=["claimed later", "claimed before"])
def test_reports_of_records_that_were_lost_are_void(reports: Sequence[CountReport]) -> None:
    ledger = Ledger()
    for one in reports:
        ledger.apply(one)
    assert records_of(ledger) == 10
    assert progress(ledger) == {(SeriesKey(Tier.BROKER, "east"), "clicks", 0, ""): 10}


@pytest.mark.parametrize("number", range(6))
def test_a_claim_may_come_after_the_next_leader_s_other_reports(number: int) -> None:
    """The old leader had counted two hours beyond the claim; the next one reports another hour and then claims."""
    other = report(Tier.BROKER, "east", EAST, {HOUR + HOUR_MS: Amounts(first=12)}, end=22, epoch=1)
    reports = list(permutations([LOST, other, replace(CLAIM, rows=CLAIM.rows[:0])]))[number]
    ledger = Ledger()
    for one in reports:
        ledger.apply(one)
    assert records_of(ledger) is None


def test_a_claim_of_a_clean_election_changes_nothing() -> None:
    ledger = Ledger()
    for one in (LOST, broker(12, 12, epoch=1, claims=[(1, 12)])):
        ledger.apply(one)
    assert records_of(ledger) == 12


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 9), st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)))),
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_no_row_that_a_claim_makes_void_is_ever_held(steps: Any, randomness: Random) -> None:
    reports = [broker(revision, revision, epoch=epoch, claims=claims) for epoch, revision, claims in steps]
    randomness.shuffle(reports)
    ledger, claims = Ledger(), set()
    for one in reports:
        ledger.apply(one)
        claims |= {(claim.leader_epoch, claim.start_offset) for claim in one.claims}
        for table in ledger.series[SeriesKey(Tier.BROKER, "east")].hours.values():
            for row in table.rows[table.rows["revision"] != ABSENT]:
                assert not any(epoch > row["leader_epoch"] and start < row["revision"] for epoch, start in claims)


def test_a_replica_without_the_beginning_of_the_log_hides_nothing() -> None:
    """Decision 26: of two reports of brokers the one with more records holds, also with a lower revision."""
    ledger = Ledger()
    for one in (broker(12, 12), broker(7, 30, process="2", counted_from=5)):
        ledger.apply(one)
    assert records_of(ledger) == 12


def test_rows_without_sums_replace_no_row_with_sums_of_as_many_records() -> None:
    """An older broker reports beside a newer one while a cluster is upgraded."""
    ledger = Ledger()
    plain = broker(12, 14, process="2")
    plain.rows["has_sums"] = False
    for one in (broker(12, 12), plain):
        ledger.apply(one)
    (table,) = ledger.series[SeriesKey(Tier.BROKER, "east")].hours.values()
    assert table.rows["has_sums"].tolist() == [True]


def test_a_topic_that_was_created_again_is_kept_beside_the_one_before() -> None:
    ledger = Ledger()
    for one in (broker(12, 12, topic_id="old", created_ms=HOUR), broker(3, 3, topic_id="new", created_ms=HOUR + 1)):
        ledger.apply(one)
    series = ledger.series[SeriesKey(Tier.BROKER, "east")]
    assert sorted(records for records, _ in state(ledger).values()) == [3, 12]
    assert ledger.life_names.names[series.newest_id(0)] == "new"


def test_only_the_newest_windows_have_rows_whatever_the_order() -> None:
    starts = [HOUR + number * 600_000 for number in range(6)]
    reports = [report(Tier.BROKER, "east", EAST, {}, windows={start: Amounts()}) for start in starts]
    for order in (reports, reports[::-1]):
        ledger = Ledger(LedgerLimits(windows=3))
        for one in order:
            ledger.apply(one)
        windows = ledger.series[SeriesKey(Tier.BROKER, "east")].windows
        assert sorted(start for _, start in windows) == starts[-3:]


def test_late_records_are_noted_with_their_number_and_time() -> None:
    over = HOUR + HOUR_MS + 120_000
    ledger = Ledger()
    for one in (
        broker(10, 10, created_ms=HOUR + HOUR_MS),
        broker(10, 10, created_ms=over),
        broker(13, 13, created_ms=over + 10_000),
        broker(13, 13, created_ms=over + 10_000),
    ):
        ledger.apply(one)
    assert ledger.series[SeriesKey(Tier.BROKER, "east")].late == {(0, HOUR): (3, over + 10_000)}


def test_latencies_of_processes_are_kept_apart_and_the_newest_of_each_holds() -> None:
    ledger = Ledger()
    empty = report(Tier.BROKER, "east", EAST, {})
    for process, buckets in (("1", ((3, 2),)), ("2", ((4, 1),)), ("1", ((3, 2), (5, 1))), ("1", ((3, 2),))):
        ledger.apply(replace(empty, latencies=[LatencyCounts(0, HOUR, process, buckets)]))
    (series,) = ledger.latencies.series("clicks")
    assert list(ledger.latencies.windows(series)) == [(HOUR, [((3, 2), (5, 1)), ((4, 1),)])]


def test_skipped_ranges_are_facts_that_hold_once() -> None:
    ledger = Ledger()
    fact = SkippedOffsets(0, 0, None, 3, 5, 3, "lost")
    load = report(Tier.LOAD, "hub", EAST, {}, name="/lake")
    for _ in range(2):
        ledger.apply(replace(load, skipped=[fact]))
    assert ledger.series[SeriesKey(Tier.LOAD, "hub", "/lake")].skipped == {cell_key(0, 0): {fact}}


@pytest.mark.parametrize(
    "column", [("records", -1), ("records", 2**60), ("partition", 100_000), ("revision", -5), ("start_ms", HOUR + 1)]
)
def test_rows_beyond_the_bounds_are_refused_and_counted(column: tuple[str, int]) -> None:
    ledger = Ledger()
    bad = broker(1, 1)
    bad.rows[column[0]] = column[1]
    ledger.apply(bad)
    assert ledger.refused == 1
    assert state(ledger) == {}


def test_the_numbers_of_hours_and_lives_are_bounded() -> None:
    ledger = Ledger(LedgerLimits(hours=2, lives=10))
    for number in range(4):
        ledger.apply(report(Tier.BROKER, "east", EAST, {HOUR + number * HOUR_MS: Amounts()}))
    assert list(ledger.series[SeriesKey(Tier.BROKER, "east")].hours) == [HOUR + 2 * HOUR_MS, HOUR + 3 * HOUR_MS]
    for number in range(40):
        ledger.apply(report(Tier.PRODUCER, "east", EAST, {}, instance=f"p{number}", is_ended=True, created_ms=number))
    kept = ledger.lives[SeriesKey(Tier.PRODUCER, "east")]
    assert len(kept) <= 10
    assert "p39" in kept
    assert ledger.refused >= 30


def test_lives_that_never_end_are_bounded_and_what_they_may_have_written_is_not_known() -> None:
    ledger = Ledger(LedgerLimits(lives=10))
    for number in range(25):
        at_ms = HOUR + number * HOUR_MS
        ledger.apply(report(Tier.PRODUCER, "east", EAST, {at_ms: Amounts()}, instance=f"p{number}", created_ms=at_ms))
        is_full = number >= 10
        assert ledger.refused_ms == ({ledger.topics.known(EAST.topic): HOUR} if is_full else {})
    assert list(ledger.lives[SeriesKey(Tier.PRODUCER, "east")]) == [f"p{number}" for number in range(15, 25)]


def test_reports_of_counters_beyond_the_bound_are_refused_and_known_ones_go_on() -> None:
    ledger = Ledger(LedgerLimits(series=3))
    made_up = [report(Tier.BROKER, f"cluster-{number}", EAST, {HOUR: Amounts()}) for number in range(10)]
    ledger.apply_all(made_up)
    assert [key.cluster for key in ledger.series] == ["cluster-0", "cluster-1", "cluster-2"]
    assert ledger.lives.keys() == ledger.series.keys()
    assert len(ledger.heard) <= 3
    assert ledger.refused == 7
    assert ledger.refused_ms == {ledger.topics.known(EAST.topic): HOUR}
    made_up = [report(Tier.BROKER, "cluster-9", TopicPartition(f"made-up-{n}", 0), {HOUR: Amounts()}) for n in range(9)]
    ledger.apply_all(made_up)
    assert ledger.topics.names == [EAST.topic]
    assert list(ledger.refused_ms.values()) == [HOUR]
    ledger.apply(report(Tier.BROKER, "cluster-1", EAST, {HOUR + HOUR_MS: Amounts()}))
    assert len(ledger.series[SeriesKey(Tier.BROKER, "cluster-1")].hours) == 2


def test_a_table_finds_its_rows_after_any_number_of_puts() -> None:
    table = RowTable(HOUR_ROW, ("revision",))
    random = np.random.default_rng(5)
    expected: dict[int, int] = {}
    for _ in range(30):
        keys = random.integers(0, 50, size=8)
        rows = np.zeros(8, HOUR_ROW)
        rows["revision"] = random.integers(0, 100, size=8)
        table.put(keys, rows)
        for key, revision in zip(keys.tolist(), rows["revision"].tolist(), strict=True):
            expected[key] = max(expected.get(key, 0), revision)
    assert dict(zip(table.keys.tolist(), table.rows["revision"].tolist(), strict=True)) == expected


def test_claims_of_no_topic_that_is_counted_are_ignored() -> None:
    ledger = Ledger()
    internal = replace(broker(1, 1), topics=[ReportedTopic("_audit")], claims=[RowClaim(0, 0, 1, 0)])
    ledger.apply(internal)
    assert state(ledger) == {}


@given(st.lists(count_reports(), max_size=8))
def test_reports_applied_together_leave_the_state_of_reports_applied_one_by_one(reports: Sequence[CountReport]) -> None:
    one_by_one, together = Ledger(), Ledger()
    for one in reports:
        one_by_one.apply(one)
    together.apply_all(reports)
    assert state(together) == state(one_by_one)
    assert (together.refused, together.shape) == (one_by_one.refused, one_by_one.shape)
    assert {hour: topics for hour, topics in together.touched.hours.items() if topics} == {
        hour: topics for hour, topics in one_by_one.touched.hours.items() if topics
    }
    for key, series in one_by_one.series.items():
        other = together.series[key]
        assert series.windows.keys() == other.windows.keys()
        for place, table in series.windows.items():
            assert table.keys.tolist() == other.windows[place].keys.tolist()
            assert table.rows.tolist() == other.windows[place].rows.tolist()
        assert series.positions.progress.tolist() == other.positions.progress.tolist()
