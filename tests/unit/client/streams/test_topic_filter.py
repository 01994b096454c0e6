"""Topic filters: whole names, commas, internal topics."""

import pytest

from pipeline.client.streams.topic_filter import INTERNAL_TOPICS, BlackList, TopicFilter, WhiteList
from pipeline.errors import ConfigurationError


@pytest.mark.parametrize(
    ("topic_filter", "allowed", "refused"),
    [
        (WhiteList("views"), ["views"], ["page_views", "views2"]),
        (WhiteList("page_.*"), ["page_views", "page_"], ["views", "a.page_views"]),
        (WhiteList("views,clicks"), ["views", "clicks"], ["viewsclicks", "views,clicks"]),
        (WhiteList("  'views , clicks'  "), ["views", "clicks"], ["view"]),
        (WhiteList("a{1,2},b{,2}c"), ["a", "aa", "bbc", "c"], ["aaa", "b"]),
        (BlackList("test-.*|tmp"), ["views", "tmp2"], ["test-1", "tmp"]),
        (BlackList("a,b"), ["c", "ab"], ["a", "b"]),
    ],
)
def test_filters_match_whole_names(topic_filter: TopicFilter, allowed: list[str], refused: list[str]) -> None:
    assert [topic for topic in allowed + refused if topic_filter.allows(topic)] == allowed


@pytest.mark.parametrize("topic_filter", [WhiteList(".*"), WhiteList("__consumer_offsets"), BlackList("views")])
def test_kafkas_internal_topics_are_never_selected(topic_filter: TopicFilter) -> None:
    assert not [topic for topic in INTERNAL_TOPICS if topic_filter.allows(topic)]
    assert topic_filter.allows("__consumer_offsets2") == (topic_filter != WhiteList("__consumer_offsets"))


@pytest.mark.parametrize("regex", ["", "  ", "''", "(", "*a", "a{99999999999999999999}", None])
def test_a_text_that_is_no_regular_expression_is_refused(regex: str) -> None:
    with pytest.raises(ConfigurationError, match="topic filter"):
        WhiteList(regex)


def test_equal_filters_are_of_one_kind_and_text() -> None:
    assert WhiteList("a") == WhiteList("a") != WhiteList("b")
    assert WhiteList("a") != BlackList("a")
