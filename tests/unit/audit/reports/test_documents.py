"""Verdicts as documents: nothing is left out silently, and never the worst."""

import json
from datetime import UTC, datetime

import pytest

from pipeline.audit.collecting.reading import instant
from pipeline.audit.judgement.verdicts import Status, Watermark
from pipeline.audit.reports.documents import (
    MAX_FINDINGS,
    hour_document,
    hour_name,
    watermark_document,
    witness_documents,
)
from pipeline.audit.reports.letters import LETTERS, common_verdict
from pipeline.audit.reports.parameters import instant_ms
from pipeline.audit.reports.selection import SelectedHours, worst_hours
from tests.support.audited_hours import NOON_MS, SILENT, audited_hour, finding, hours_back


def test_an_hour_keeps_the_fields_of_earlier_versions() -> None:
    document = hour_document(audited_hour(Status.MISSING))
    assert (document["topic"], document["hour"], document["status"]) == ("clicks", "2026-11-01T12:00:00Z", "missing")
    assert document["stages"]["live"] == {"records": 10, "bytes": 1000, "batches": 2, "crc_sum": 77}
    (found,) = document["findings"]
    assert {"cluster", "source", "replica", "after", "at", "status", "records", "text"} <= found.keys()
    assert (document["kind"], found["kind"], found["offsets"]) == ("missing", "missing", [100, 199])
    json.dumps(document)


def test_an_hour_without_word_names_the_witness() -> None:
    document = hour_document(audited_hour(Status.UNKNOWN))
    assert document["missing_witnesses"] == [
        {"name": "the broker of hub", "reason": "never reported clicks-0", "cluster": "hub", "partition": "clicks-0"}
    ]
    assert document["findings"][0]["witness"]["name"] == "the broker of hub"
    assert len(witness_documents([SILENT, SILENT])) == 1


def test_of_too_many_findings_the_worst_stay() -> None:
    many = [finding(Status.PENDING, NOON_MS, partition=number) for number in range(MAX_FINDINGS + 5)]
    lost = finding(Status.MISSING, NOON_MS, partition=99_999)
    document = hour_document(audited_hour(Status.MISSING, findings=[*many, lost]))
    assert len(document["findings"]) == MAX_FINDINGS
    assert document["findings"][0]["source"] == "clicks-99999"
    assert document["findings_left_out"] == 6


def test_of_too_many_hours_the_worst_and_then_the_newest_stay_in_their_order() -> None:
    lost = audited_hour(Status.MISSING, 0)
    waits = audited_hour(Status.PENDING)
    hours = [lost, *hours_back(5), waits]
    assert worst_hours(hours, 7) == SelectedHours(hours=hours)
    assert worst_hours(hours, 3) == SelectedHours(hours=[lost, hours[5], waits], left_out={"exact": 4})
    least = worst_hours(hours, 1)
    assert least == SelectedHours(hours=[lost], left_out={"pending": 1, "exact": 5})
    assert least.statuses == {Status.MISSING, Status.PENDING, Status.EXACT}


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        (set(), "unknown"),
        ({Status.EXACT}, "exact"),
        ({Status.EXACT, Status.PENDING}, "unknown"),
        ({Status.EXACT, Status.UNKNOWN}, "unknown"),
        ({Status.UNKNOWN, Status.MISSING}, "difference"),
        ({Status.EXACT, Status.EXPLAINED}, "difference"),
    ],
)
def test_a_difference_wins_over_what_is_unknown(statuses: set[Status], verdict: str) -> None:
    assert common_verdict(statuses) == verdict


def test_each_status_has_a_letter_of_its_own() -> None:
    assert len(set(LETTERS.values())) == len(Status)


@pytest.mark.parametrize("year", [1, 999, 1969, 9999])
def test_the_name_of_an_hour_of_any_year_is_a_time_that_can_be_asked_for(year: int) -> None:
    hour_ms = int(datetime(year, 12, 31, 23, tzinfo=UTC).timestamp()) * 1000
    assert instant_ms(hour_name(hour_ms), "hour") == hour_ms
    assert instant_ms(instant(hour_ms + 59_000), "hour") == hour_ms + 59_000


def test_times_beyond_all_years_have_names() -> None:
    assert hour_name(2**61) == f"{2**61} ms"
    assert hour_name(-(2**62)).endswith(" ms")


def test_a_topic_that_was_never_complete_says_what_it_waits_for() -> None:
    mark = Watermark(topic="clicks", complete_ms=None, waits_for="the broker of hub")
    assert watermark_document(mark) == {"complete_to": None, "waits_for": "the broker of hub"}
    done = Watermark(topic="clicks", complete_ms=NOON_MS + 600_000, waits_for="")
    assert watermark_document(done)["complete_to"] == "2026-11-01T12:10:00Z"
