"""Rows on a shelf: the same state and verdicts as rows in memory, whatever comes late."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.events.report import CountReport, RowClaim
from pipeline.audit.events.tiers import Tier
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.ledger.limits import LedgerLimits
from pipeline.audit.ledger.row_table import BY_RECORDS, HOUR_ROW, RowTable
from pipeline.audit.reports.documents import Knowledge
from pipeline.audit.reports.flow import flow_document
from pipeline.records.tally import HOUR_MS
from tests.support.audited_walk import Walk, differences
from tests.support.audited_way import EAST, HOUR, Amounts, report
from tests.support.memory_shelf import MemoryShelf
from tests.unit.audit.ledger.test_ledger import count_reports, state

KNOWN = Knowledge(judged_ms=0, clusters={}, unknown=[], is_complete=True)


def shelving(rows: int = 0, newest: int = 0) -> Ledger:
    return Ledger(LedgerLimits(rows=rows, newest=newest), shelf=MemoryShelf())


def flow(ledger: Ledger, topics: Sequence[str]) -> object:
    return flow_document(ledger, topics, [], [], [], KNOWN, live_clusters=["east"], replica_cluster=None)


def shelved_tables(ledger: Ledger) -> int:
    return sum(table.is_shelved for series in ledger.series.values() for table in series.hours.values())


@given(st.lists(st.tuples(count_reports(), st.booleans(), st.integers(0, 2)), max_size=8))
def test_rows_on_a_shelf_are_the_same(steps: Sequence[tuple[CountReport, bool, int]]) -> None:
    plain, ledger = Ledger(), shelving()
    for one, has_claim, start in steps:
        is_claim = has_claim and one.counter.tier is Tier.BROKER
        event = replace(one, claims=[RowClaim(0, 0, 1, start)]) if is_claim else one
        plain.apply(event)
        ledger.apply(event)
        ledger.shelve()
    for topics in ([], ["views"]):
        assert flow(plain, topics) == flow(ledger, topics)
    assert {hour: topics for hour, topics in plain.touched.hours.items() if topics} == {
        hour: topics for hour, topics in ledger.touched.hours.items() if topics
    }
    assert state(plain) == state(ledger)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 1)), unique=True, max_size=20),
    st.sets(st.integers(0, 6)),
)
def test_parts_of_a_shelved_table_have_the_rows_of_their_topics(
    places: Sequence[tuple[int, int, int]], topics: set[int]
) -> None:
    keys = np.array(sorted((topic << 43) | (partition << 26) | life for topic, partition, life in places), np.int64)
    rows = np.zeros(len(keys), HOUR_ROW)
    rows["records"] = np.arange(len(keys)) + 1
    table = RowTable(HOUR_ROW, BY_RECORDS)
    table.put(keys, rows)
    assert table.shelve(MemoryShelf(), None) is not None
    wanted = np.array(sorted(topics), np.int64)
    part = table.of_topics(wanted)
    chosen = np.isin(keys >> 43, wanted)
    assert part.keys.tolist() == table.keys_of(wanted).tolist() == keys[chosen].tolist()
    assert part.rows["records"].tolist() == rows["records"][chosen].tolist()
    some = keys[::2]
    assert table.at(some)["records"].tolist() == rows["records"][::2].tolist()
    assert table.is_shelved and len(table) == len(keys)
    assert table.rows["records"].tolist() == rows["records"].tolist()
    assert not table.is_shelved


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_walks_with_all_rows_on_a_shelf_come_to_the_same_verdicts(seed: int) -> None:
    plain, walk = Walk(seed), Walk(seed, is_shelved=True)
    for number in range(120):
        plain.step()
        walk.step()
        if number % 8 == 0:
            judgement = walk.judgement()
            assert differences(judgement) == []
            assert judgement.hours() == plain.judgement().hours()
            assert judgement.watermarks() == plain.judgement().watermarks()
            walk.ledger.shelve()
    assert shelved_tables(walk.ledger) > 0
    for hour in walk.judgement().hours():
        told = [replace(each, stages={}) for each in walk.judgement().partitions_of(hour.topic, hour.hour_ms)]
        assert told == [replace(each, stages={}) for each in plain.judgement().partitions_of(hour.topic, hour.hour_ms)]


def test_the_hours_that_were_reported_last_stay_in_memory() -> None:
    ledger = shelving(rows=2, newest=1)
    for turn, number in enumerate((0, 1, 2, 0)):
        ledger.apply(report(Tier.BROKER, "east", EAST, {HOUR + number * HOUR_MS: Amounts()}, revision=7 + turn))
        ledger.shelve()
    (series,) = ledger.series.values()
    assert [start for start, table in series.hours.items() if table.is_shelved] == [HOUR + HOUR_MS]


def test_rows_for_which_the_shelf_has_no_room_stay_in_memory() -> None:
    class FullShelf(MemoryShelf):
        def put(self, data: bytes | memoryview) -> int | None:
            return None

    ledger = Ledger(LedgerLimits(rows=0, newest=0), shelf=FullShelf())
    ledger.apply(report(Tier.BROKER, "east", EAST, {HOUR: Amounts()}))
    before = state(ledger)
    ledger.shelve()
    assert state(ledger) == before and shelved_tables(ledger) == 0


def test_windows_that_were_not_reported_last_are_on_the_shelf_and_leave_it_when_they_are_too_old() -> None:
    shelf = MemoryShelf()
    ledger = Ledger(LedgerLimits(rows=2, newest=1, windows=4), shelf=shelf)
    for number in range(7):
        ledger.apply(report(Tier.BROKER, "east", EAST, {}, windows={HOUR + number * 600_000: Amounts()}))
        ledger.shelve()
    (series,) = ledger.series.values()
    assert [table.is_shelved for _, table in sorted(series.windows.items())] == [True, True, False, False]
    assert len(shelf.kept) == 2
