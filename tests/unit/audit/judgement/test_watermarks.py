"""Watermarks: how far a topic is complete, and what a higher one waits for."""

from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.verdicts import Watermark
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import EAST, GRACE_MS, HOUR, HUB, LAKE, Amounts, judged, report, signs

WINDOW_MS = 600_000
NEXT = HOUR + HOUR_MS
NOW = NEXT + 3 * WINDOW_MS + GRACE_MS + 30_000
"""In the second hour, when three windows of it are over."""


def windows_of(count: int, *, start: int = NEXT, content: int = 7) -> dict[int, Amounts]:
    return {
        start + number * WINDOW_MS: Amounts(records=10, first=200 + 10 * number, content=content + number)
        for number in range(count)
    }


def stage(tier: Tier, count: int, *, created_ms: int = NOW, lost: int | None = None, **options: Any) -> CountReport:
    """Return a report with a full hour, and so many windows of the next one; one window may lack two records."""
    windows = windows_of(count)
    if lost is not None:
        windows[NEXT + lost * WINDOW_MS] = Amounts(records=8, first=200 + 10 * lost, content=1)
    second = Amounts(
        records=sum(each.records for each in windows.values()),
        first=200,
        content=sum(each.content for each in windows.values()),
        columns={"last_offset": 199 + 10 * count},
    )
    cluster, partition = ("east", EAST) if tier is Tier.PRODUCER or options.get("cluster") == "east" else ("hub", HUB)
    options.pop("cluster", None)
    hours = {HOUR: Amounts(first=100, records=100), NEXT: second} if count else {HOUR: Amounts(first=100, records=100)}
    return report(
        tier, cluster, partition, hours, windows=windows, created_ms=created_ms, end=200 + 10 * count, **options
    )


def way(produced: int = 4, live: int = 4, replica: int = 4, loaded: int = 4, **closed: int) -> list[CountReport]:
    return [
        stage(Tier.PRODUCER, produced, instance="p1", revision=1, closed_ms=closed.get("closed_ms", NOW)),
        stage(Tier.BROKER, live, cluster="east"),
        stage(Tier.BROKER, replica),
        stage(Tier.LOAD, loaded, name=LAKE),
    ]


def watermark(reports: Sequence[CountReport], now_ms: int = NOW, **changes: Any) -> Watermark:
    read = {"read_to_ms": {"east": now_ms, "hub": now_ms}, **changes}
    (found,) = judged(reports, now_ms=now_ms, **read).watermarks()
    return found


def test_windows_that_are_equal_everywhere_and_over_are_complete() -> None:
    found = watermark(way())
    assert found.complete_ms == NEXT + 3 * WINDOW_MS


def test_an_idle_topic_is_complete_up_to_the_words_of_its_parties() -> None:
    found = watermark([*way(produced=0, live=0, replica=0, loaded=0)])
    assert found.complete_ms == NEXT + 3 * WINDOW_MS


@pytest.mark.parametrize("behind", ["live", "replica", "loaded"])
def test_a_watermark_waits_for_each_stage(behind: str) -> None:
    found = watermark(way(**{behind: 2}))
    assert found.complete_ms == NEXT + 2 * WINDOW_MS
    assert found.waits_for


def test_a_watermark_never_passes_a_window_that_a_living_producer_has_not_closed() -> None:
    found = watermark(way(closed_ms=NEXT + WINDOW_MS + 5))
    assert found.complete_ms == NEXT + WINDOW_MS
    assert "producer p1 on web-1 to close its windows" in found.waits_for


def test_a_watermark_stays_before_a_loss() -> None:
    lossy = [*way()[:2], stage(Tier.BROKER, 4, lost=1), stage(Tier.LOAD, 4, lost=1, name=LAKE)]
    assert watermark(lossy).complete_ms == NEXT + WINDOW_MS
    later = NEXT + 9 * HOUR_MS
    found = watermark([*lossy, *signs(later)], later)
    assert found.complete_ms == NEXT + WINDOW_MS
    assert "2 records that were live are missing" in found.waits_for


def test_a_watermark_stays_before_an_hour_of_which_producers_sent_records_to_the_replica_itself() -> None:
    """The hour is unknown once it is over: until then the watermark must not rise, and fall back."""
    at_the_hub = report(Tier.PRODUCER, "hub", HUB, {NEXT: Amounts()}, instance="p2", revision=1, created_ms=NOW)
    found = watermark([*way(), at_the_hub])
    assert found.complete_ms == NEXT
    assert found.waits_for


@pytest.mark.parametrize("cluster", ["east", "hub"])
def test_a_watermark_never_passes_what_was_read(cluster: str) -> None:
    read = {"east": NOW, "hub": NOW, cluster: NEXT + 2 * WINDOW_MS + GRACE_MS}
    found = watermark(way(), read_to_ms=read)
    assert found.complete_ms == NEXT + 2 * WINDOW_MS
    assert f"the audit topic of {cluster}" in found.waits_for
    del read[cluster]
    assert watermark(way(), read_to_ms=read).complete_ms is None


def test_a_watermark_never_passes_the_word_of_a_leader() -> None:
    quiet = [*way()[:1], stage(Tier.BROKER, 2, cluster="east", created_ms=NEXT + 2 * WINDOW_MS + 25_000), *way()[2:]]
    assert watermark(quiet).complete_ms == NEXT + 2 * WINDOW_MS


def test_a_topic_without_a_complete_window_has_no_watermark() -> None:
    reports = [one for one in way() if one.counter.tier is not Tier.LOAD]
    lossy = report(Tier.LOAD, "hub", HUB, {HOUR: Amounts(records=8, first=100, content=5)}, name=LAKE, end=300)
    assert watermark([*reports, lossy]).complete_ms is None
