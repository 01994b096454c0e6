"""Cells of data that goes wrong between two tiers, or in files, and of data that comes late."""

from collections.abc import Callable, Mapping
from pathlib import Path

import fastavro

from pipeline.audit.judgement.verdicts import DiscrepancyKind, Status
from pipeline.records.tally import HOUR_MS
from tests.support.audited.cells import (
    FIRST,
    SECOND,
    SEEN_AT,
    Check,
    Found,
    assert_exact,
    assert_not_exact,
    cell,
    findings,
    statuses,
)
from tests.support.audited.forgeries import FORGERIES
from tests.support.audited.way import BATCHES_PER_HOUR, DAY_MS, PARTITIONS, RECORDS, Way

# Data that goes wrong between two tiers

DIFFERENCES: Mapping[str, tuple[Status, DiscrepancyKind, int, tuple[int, ...]]] = {
    "record lost": (Status.MISSING, DiscrepancyKind.MISSING, RECORDS, (0,)),
    "record doubled": (Status.EXTRA, DiscrepancyKind.UNEXPLAINED, RECORDS, (0,)),
    "byte changed": (Status.CHANGED, DiscrepancyKind.CHANGED, 0, (0,)),
    "one lost and one doubled": (Status.CHANGED, DiscrepancyKind.CHANGED, 0, (0,)),
    "two records swapped between partitions": (Status.CHANGED, DiscrepancyKind.MISPLACED, 0, (0, 1)),
    "batches reordered": (Status.CHANGED, DiscrepancyKind.REORDERED, 0, (0,)),
}


def _check_forgery(fault: str) -> Check:
    def check(way: Way, tier: str) -> None:
        way.forge[tier] = FORGERIES[fault]
        way.run()
        status, kind, records, partitions = DIFFERENCES[fault]
        expected = {Found(SEEN_AT[tier], status, kind, records, number) for number in partitions}
        assert findings(way, FIRST) == expected
        assert_exact(way, SECOND)

    return check


for _fault in FORGERIES:
    _tiers = ("mirrored", "replica", "loaded", "consumed")
    cell(_fault, *_tiers, *(("live",) if _fault != "batches reordered" else ()))(_check_forgery(_fault))


@cell("batches reordered", "live")
def _reordered_by_the_broker(way: Way, _tier: str) -> None:
    """Brokers give the offsets, so the order of batches at the broker is the order: nothing is lost."""
    way.forge["live"] = FORGERIES["batches reordered"]
    way.run()
    assert_exact(way)


@cell("record lost", "produced")
def _unsent(way: Way, _tier: str) -> None:
    """A record that was accepted and never sent is in the life sign, and in no count."""
    way.producers[-1].give_up(PARTITIONS[0], RECORDS)
    way.run()
    assert_exact(way)
    assert any("7 records" in text and "not sent" in text for text in way.hours()[FIRST].rests_on)


# Files of the table


def _remove(ours: Path, _others: Path, _neighbour: Path) -> None:
    ours.unlink()


def _double(ours: Path, _others: Path, _neighbour: Path) -> None:
    ours.write_bytes(ours.read_bytes() * 2)


def _flip_a_bit(ours: Path, _others: Path, _neighbour: Path) -> None:
    data = bytearray(ours.read_bytes())
    data[len(data) // 2] ^= 1
    ours.write_bytes(data)


def _replace_by_another(ours: Path, others: Path, _neighbour: Path) -> None:
    ours.write_bytes(others.read_bytes())


def _exchange(ours: Path, _others: Path, neighbour: Path) -> None:
    here, there = ours.read_bytes(), neighbour.read_bytes()
    ours.write_bytes(there)
    neighbour.write_bytes(here)


def _turn_round(ours: Path, _others: Path, _neighbour: Path) -> None:
    with ours.open("rb") as file:
        reader = fastavro.reader(file)
        schema, records = reader.writer_schema, list(reader)
    with ours.open("wb") as file:
        fastavro.writer(file, schema, records[::-1], codec="snappy")


EDITS: Mapping[str, Callable[[Path, Path, Path], None]] = {
    "record lost": _remove,
    "record doubled": _double,
    "byte changed": _flip_a_bit,
    "one lost and one doubled": _replace_by_another,
    "two records swapped between partitions": _exchange,
    "batches reordered": _turn_round,
    "segment file edited": _flip_a_bit,
}
"""Edits of the file of partition 0 and the first hour; the others are of the second hour, and of partition 1."""


def _check_edit(fault: str) -> Check:
    def check(way: Way, _tier: str) -> None:
        way.run()
        assert_exact(way)
        EDITS[fault](way.file(0, FIRST), way.file(0, SECOND), way.file(1, FIRST))
        way.settle()
        partitions = (0, 1) if fault == "two records swapped between partitions" else (0,)
        missing = BATCHES_PER_HOUR * RECORDS
        assert findings(way, FIRST) == {
            Found("stored", Status.MISSING, DiscrepancyKind.MISSING, missing, number) for number in partitions
        }
        assert_exact(way, SECOND)

    return check


for _fault in EDITS:
    cell(_fault, "stored")(_check_edit(_fault))


# Late


@cell("late by an hour", "produced")
def _late_producer(way: Way, _tier: str) -> None:
    way.run()
    assert_exact(way)
    way.start_producer()
    way.produce(FIRST, 1)
    way.report()
    late = way.hours()[FIRST]
    assert late.status is Status.PENDING
    assert {one.kind for one in late.findings} == {DiscrepancyKind.LATE}
    way.finish()
    assert_exact(way)


@cell("late by an hour", "stored")
def _late_verification(way: Way, _tier: str) -> None:
    """Files are read back when somebody wants it. An exact hour says whether it rests on that."""
    way.late = {"stored"}
    way.run()
    assert_exact(way)
    assert not any("stored" in text for text in way.hours()[FIRST].rests_on)
    way.late = set()
    way.settle()
    assert_exact(way)
    assert any("stored" in text for text in way.hours()[FIRST].rests_on)


@cell("late by an hour", "live", "mirrored", "replica", "loaded", "consumed")
def _late_reports(way: Way, tier: str) -> None:
    """The reports of a tier are late: the hour is not exact without them, but for the mirror's, and is exact then."""
    way.produce()
    way.copy()
    way.load()
    way.consume()
    way.report()
    way.late = {tier}
    way.produce(SECOND)
    way.finish()
    if tier != "mirrored":
        assert way.hours()[SECOND].status in (Status.PENDING, Status.UNKNOWN)
    way.pass_time(HOUR_MS // 2)
    way.late = set()
    way.settle()
    assert_exact(way)


# Clocks


@cell("clock wrong by a day", "produced")
def _producer_clock(way: Way, _tier: str) -> None:
    """Records bear tomorrow's time: their hour is not over until tomorrow, and is exact then."""
    way.producers[-1].skew_ms = DAY_MS
    way.produce(FIRST + DAY_MS)
    way.finish()
    assert statuses(way) == {FIRST + DAY_MS: Status.PENDING}
    way.pass_time(DAY_MS)
    way.report()
    assert_exact(way, FIRST + DAY_MS)


@cell("clock wrong by a day", "live", "mirrored", "replica", "loaded", "stored", "consumed")
def _clock(way: Way, tier: str) -> None:
    for skew_ms in (DAY_MS, -DAY_MS):
        way.set_clock(tier, skew_ms)
        way.produce()
        way.report()
        assert_not_exact(way, FIRST)
    way.set_clock(tier, 0)
    way.pass_time(HOUR_MS)
    way.produce(SECOND)
    way.finish()
    assert_exact(way)
