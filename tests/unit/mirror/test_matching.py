"""Patterns that take for ever on some names: they hold up nothing, and the status names them."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.mirror.matching import match_within_bound
from pipeline.mirror.selection import MAX_SLOW, NameSelection, SlowPatternError, compile_patterns
from pipeline.model import TopicPartition
from tests.support.mirrors import CLICKS, Site, make, mirror_settings, publish, until, until_copied

NAME = "a" * 60 + "b"
BOUND_S = 10
"""Far less than such a match takes, and far more than its bound, on a busy machine."""


@pytest.mark.long
@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a|aa)+", "(a*)*c", "([a-z]+-?)*events", "a?" * 40 + "a" * 40 + "c", ".*a.*a.*a.*a.*a.*a.*a.*c"],
)
def test_a_pattern_that_takes_for_ever_is_ended(pattern: str) -> None:
    began = time.monotonic()
    with pytest.raises(SlowPatternError, match="takes too long on the name aaa"):
        match_within_bound(re.compile(pattern), NAME * 3)
    assert time.monotonic() - began < BOUND_S


@given(
    st.sampled_from([".*", "(a|b)+", "a{2,3}", "[a-c]+-?", "(a.*)*", r"\w+(\.\w+)*", "(?!ab).*", "a", ""]),
    st.text("abc.-", max_size=12),
)
def test_a_bounded_match_finds_what_the_pattern_matches(pattern: str, name: str) -> None:
    assert match_within_bound(re.compile(pattern), name) == bool(re.fullmatch(pattern, name))


def test_a_pattern_that_is_slow_for_many_names_is_tried_on_no_more() -> None:
    tried = []

    def matches(pattern: re.Pattern[str], name: str) -> bool:
        tried.append(name)
        raise SlowPatternError(pattern.pattern, name)

    selection = NameSelection(compile_patterns("topics", ["(a+)+"]), (), matches)
    names = [str(number) for number in range(3 * MAX_SLOW)]
    assert not any(selection.selects(name) for name in names + names)
    assert len(tried) == MAX_SLOW
    assert list(selection.slow) == names


@pytest.mark.long
async def test_a_topic_on_which_a_pattern_takes_for_ever_is_shown_and_others_are_copied(site: Site) -> None:
    await make(site.east)
    await make(site.east, NAME)
    await publish(site.east, b"a")
    async with site.mirroring(topics=["clicks", "(a+)+"]) as service:
        await until_copied(site.hub, CLICKS, b"a")
        await until(lambda: bool(service.status()["flows"][0]["remarks"]))
        (remark,) = service.status()["flows"][0]["remarks"]
        assert (remark["topic"], remark["is_copied"]) == (NAME, False)
        assert "not copied: the pattern (a+)+ takes too long on the name" in remark["remark"]
        planned = await service.settings.plan(mirror_settings("east", "west", topics=["clicks", "(a+)+b"]))
        assert [(each["topic"], each["change"]) for each in planned["topics"]] == [(NAME, "start")]
        assert TopicPartition(NAME, 0) not in {copy.source for copy in service.sources["east"].copies.states.values()}
