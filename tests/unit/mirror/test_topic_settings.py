"""Settings of a replica, from those of its sources: nothing is lost that a source keeps."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigurationError
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.topic_settings import FOLLOWED_SETTINGS, SettingValue, TopicShare, combine_settings

DEFAULTS = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1", "segment.bytes": "1000"}
POLICIES = ["delete", "compact", "compact,delete"]


def share(source: str, *, has_topic: bool = True, **own: str) -> TopicShare:
    """A topic with these settings of its own, dots as underscores, and its cluster's defaults."""
    named = {name.replace("_", "."): value for name, value in own.items()}
    values = {name: SettingValue((DEFAULTS | named)[name], name in named) for name in DEFAULTS | named}
    return TopicShare(source=source, values=values, has_topic=has_topic)


def combined(*shares: TopicShare) -> dict[str, str]:
    found = combine_settings(shares, FOLLOWED_SETTINGS)
    assert found is not None
    return dict(found.values)


def differences(*shares: TopicShare) -> str:
    found = combine_settings(shares, FOLLOWED_SETTINGS)
    assert found is not None
    return "; ".join(found.differences)


def test_a_single_source_gives_the_settings_that_its_topic_sets() -> None:
    assert combined(share("east")) == {}
    own: Any = {"retention_ms": "1000", "cleanup_policy": "compact", "segment_bytes": "5", "flush_ms": "7"}
    east = share("east", **own)
    assert combined(east) == {"retention.ms": "1000", "cleanup.policy": "compact", "segment.bytes": "5"}
    assert differences(east) == ""


def test_the_largest_retention_counts_and_unlimited_is_the_largest() -> None:
    east, west = share("east", retention_ms="1000", retention_bytes="50"), share("west", retention_ms="2000")
    assert combined(east, west) == {"retention.ms": "2000", "retention.bytes": "-1"}
    assert combined(share("east", retention_ms="5"), share("west", retention_ms="-1"))["retention.ms"] == "-1"
    assert combined(share("east", retention_ms="5"), share("west"))["retention.ms"] == DEFAULTS["retention.ms"]
    assert "retention.ms is 1000 in east, 2000 in west; the replica has 2000" in differences(east, west)


def test_other_settings_are_those_of_the_first_source_that_has_the_topic() -> None:
    east, west = share("east", segment_bytes="5", segment_ms="9"), share("west", segment_bytes="6")
    assert combined(east, west) == {"segment.bytes": "5", "segment.ms": "9"}
    assert combined(west, east) == {"segment.bytes": "6"}
    gone = share("east", has_topic=False, segment_bytes="5", retention_ms="-1")
    assert combined(gone, west) == {"segment.bytes": "6", "retention.ms": "-1"}


def test_a_replica_without_source_topics_keeps_what_it_has() -> None:
    assert combine_settings([], FOLLOWED_SETTINGS) is None
    assert combine_settings([share("east", has_topic=False, retention_ms="5")], FOLLOWED_SETTINGS) is None


@given(st.lists(st.tuples(st.sampled_from(POLICIES), st.sampled_from(["-1", "10", "99"])), min_size=1, max_size=4))
def test_a_replica_keeps_what_any_of_its_sources_keeps(drawn: Any) -> None:
    shares = [
        share(f"s{number}", cleanup_policy=policy, retention_ms=retention, retention_bytes=retention)
        for number, (policy, retention) in enumerate(drawn)
    ]
    found = combined(*shares)
    for policy, retention in drawn:
        if "compact" not in policy:
            assert "compact" not in found["cleanup.policy"]
        if "delete" in found["cleanup.policy"]:
            kept = float("inf") if "delete" not in policy or retention == "-1" else int(retention)
            for name in ("retention.ms", "retention.bytes"):
                assert kept <= (float("inf") if found[name] == "-1" else int(found[name]))
    assert bool(differences(*shares)) == (len(set(drawn)) > 1)


def test_only_followed_settings_are_combined() -> None:
    found = combine_settings([share("east", retention_ms="5", segment_bytes="7")], ["segment.bytes"])
    assert found is not None
    assert found.values == {"segment.bytes": "7"}


@pytest.mark.parametrize(
    "name", ["mirror.source", "mirror.partitions", "leader.replication.throttled.replicas", "Retention", "a b", ""]
)
def test_settings_that_mean_something_in_one_cluster_alone_are_not_followed(name: str) -> None:
    sources = [{"name": "east", "bootstrap.servers": "one:1"}]
    settings = {"destination.bootstrap.servers": "h:1", "topics": ["a"], "http.listen": "h:0", "sources": sources}
    assert MirrorConfig.from_settings({**settings, "topic.settings": []}).topic_settings == ()
    assert "min.insync.replicas" not in MirrorConfig.from_settings(settings).topic_settings
    with pytest.raises(ConfigurationError, match=r"topic.settings: has"):
        MirrorConfig.from_settings({**settings, "topic.settings": [name]})
