"""The story of an hour: sentences in the order of the way."""

from dataclasses import replace

import pytest

from pipeline.audit.judgement.story import MAX_TOLD, story_of
from pipeline.audit.judgement.verdicts import DiscrepancyKind, Status
from tests.support.audited_way import NOW_MS, Amounts, WholeWay, only_hour, signs
from tests.unit.audit.judgement.test_judge import LESS, OTHER, settled


def test_the_story_of_an_exact_hour() -> None:
    story = story_of(only_hour(WholeWay().reports()))
    assert story[0] == "Topic clicks, records from 1970-02-11T16:00:00Z to 1970-02-11T17:00:00Z: exact."
    assert story[1] == "The producers counted 10 records in 5 batches, 1000 bytes."
    assert story[2].startswith("The brokers of the live clusters have 10 records")
    assert story[2].endswith("the same as the stage before.")
    assert "No two stages differ." in story
    assert story[-1] == "There is nothing to do."


def test_the_story_of_a_loss_says_where_it_is_first_and_what_to_do() -> None:
    story = story_of(only_hour([*settled(replica=LESS, loaded=LESS).reports(), *signs()]))
    (fewer,) = [text for text in story if "fewer than the stage before" in text]
    assert fewer.startswith("The brokers of the replica cluster have 8 records")
    first = story.index("The first difference is between what was live and what was at the replica, in east clicks-0.")
    assert "2 records that were live are missing" in story[first + 1]
    assert "`pipeline mirror gaps`" in story[-1]


@pytest.mark.parametrize(
    ("way", "text"),
    [
        (settled(live=LESS, replica=LESS, loaded=LESS), "unclean election"),
        (settled(loaded=LESS), "`pipeline load verify`"),
        (settled(replica=OTHER, loaded=OTHER), "--narrow"),
        (settled(loaded=Amounts(records=8, columns={"quarantined": 2})), "quarantine"),
    ],
)
def test_each_difference_has_a_next_step(way: WholeWay, text: str) -> None:
    assert text in story_of(only_hour([*way.reports(), *signs()]))[-1]


def test_missing_words_are_told() -> None:
    story = story_of(only_hour(WholeWay().reports(), read_to_ms={}))
    assert any(
        text.startswith("A word is missing: audit topic of east: it was never") or "never read" in text
        for text in story
    )
    assert story[-1].startswith("Bring back the parties")


def test_a_story_is_bounded() -> None:
    hour = only_hour([*settled(replica=LESS, loaded=LESS).reports(), *signs()])
    many = replace(hour, findings=[replace(hour.findings[0], kind=DiscrepancyKind.MISSING)] * 500)
    story = story_of(many)
    assert len(story) < MAX_TOLD + 20
    assert f"{500 - MAX_TOLD} more partitions differ." in story


@pytest.mark.parametrize("status", Status)
def test_every_status_has_a_story_without_two_full_stops(status: Status) -> None:
    hour = only_hour([*settled(replica=LESS, loaded=LESS).reports(), *signs()])
    found = replace(hour, status=status, findings=[replace(hour.findings[0], status=status)])
    assert all(text.endswith(".") and not text.endswith("..") for text in story_of(found))


def test_one_of_a_thing_is_no_plural() -> None:
    one = Amounts(records=1, columns={"batches": 1, "bytes": 1})
    story = story_of(only_hour(WholeWay(produced=one, live=one, replica=one, loaded=one).reports()))
    assert story[1] == "The producers counted 1 record in 1 batch, 1 byte."


def test_an_hour_that_is_not_over_says_so_once() -> None:
    story = story_of(only_hour(WholeWay().reports(), now_ms=NOW_MS - 90 * 60_000))
    assert story[-2:] == [
        "The hour is not over.",
        "Ask again later: the hour is not over, or records are still on their way.",
    ]


def test_what_is_unknown_is_neither_a_difference_nor_explained() -> None:
    hour = only_hour([*settled(replica=LESS, loaded=LESS).reports(), *signs()])
    found = replace(hour.findings[0], status=Status.UNKNOWN)
    witness = only_hour(WholeWay().reports(), read_to_ms={}).missing_witnesses
    story = story_of(replace(hour, status=Status.UNKNOWN, findings=[found], missing_witnesses=witness))
    assert "No difference is certain yet." in story
    assert story[-1] == "Bring back the parties whose word is missing; the verdict then follows by itself."
    assert not any("explained" in text for text in story)
