"""Questions over HTTP: hostile ones get a sentence, never another answer than they asked for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.judgement.verdicts import Status
from pipeline.audit.reports.parameters import MAX_NAMES, HoursQuestion, QuestionError, instant_ms, read_flag
from pipeline.audit.reports.status import MAX_HOURS, GridQuestion
from pipeline.records.tally import HOUR_MS


def test_a_question_without_parameters_asks_for_all() -> None:
    assert HoursQuestion.read({}) == HoursQuestion()


def test_times_are_iso_or_ms() -> None:
    asked = HoursQuestion.read(
        {"from": ["2026-11-01T00:00"], "to": ["1793534400000"], "topic": ["a", "b"], "status": ["-", "exact"]}
    )
    assert (asked.from_ms, asked.to_ms) == (1_793_491_200_000, 1_793_534_400_000)
    assert (asked.topics, asked.statuses) == ({"a", "b"}, {Status.MISSING, Status.EXACT})
    assert instant_ms("2026-11-01T01:00+01:00", "from") == 1_793_491_200_000
    assert instant_ms("-4611686018427387904", "hour") == -(2**62)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"from": ["x"]}, "from"),
        ({"from": ["1"], "to": ["1"]}, "from"),
        ({"from": ["1", "2"]}, "from"),
        ({"to": ["99999999999999999999"]}, "to"),
        ({"to": ["0001-01-01T00:00+23:59"]}, None),
        ({"limit": ["0"]}, "limit"),
        ({"limit": ["100001"]}, "limit"),
        ({"limit": ["١"]}, "limit"),
        ({"limit": ["1e3"]}, "limit"),
        ({"offset": ["-1"]}, "offset"),
        ({"status": ["nice"]}, "status"),
        ({"topic": [str(number) for number in range(MAX_NAMES + 1)]}, "topic"),
    ],
)
def test_a_wrong_parameter_is_named(values: Any, name: str | None) -> None:
    if name is None:
        HoursQuestion.read(values)
        return
    with pytest.raises(QuestionError, match=rf"^{name}: "):
        HoursQuestion.read(values)


@given(st.dictionaries(st.sampled_from(["from", "to", "limit", "offset", "status", "topic"]), st.lists(st.text())))
def test_no_text_raises_anything_else(values: dict[str, list[str]]) -> None:
    try:
        asked = HoursQuestion.read(values)
    except QuestionError as error:
        assert len(str(error)) < 300
    else:
        assert asked.topics == frozenset(values.get("topic", ()))


@pytest.mark.parametrize("from_ms", [0, 1, HOUR_MS // 2, HOUR_MS - 1])
def test_a_grid_that_has_a_beginning_alone_is_as_long_as_it_may_be(from_ms: int) -> None:
    asked = GridQuestion.read({"from": [str(from_ms)]}, 10**12)
    assert (asked.from_ms, asked.hours) == (0, MAX_HOURS)


def test_a_flag_is_true_or_false() -> None:
    assert [read_flag(values, "narrow") for values in ({}, {"narrow": ["true"]}, {"narrow": ["false"]})] == [
        False,
        True,
        False,
    ]
    with pytest.raises(QuestionError):
        read_flag({"narrow": ["yes"]}, "narrow")
