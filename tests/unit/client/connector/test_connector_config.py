"""Settings of a connector: Kafka's words of old and new, and bounds."""

from typing import Any

import pytest

from pipeline.client.cluster.config import OffsetReset
from pipeline.client.connector.config import ConnectorConfig
from pipeline.errors import ConfigurationError


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("smallest", OffsetReset.EARLIEST),
        ("largest", OffsetReset.LATEST),
        ("earliest", OffsetReset.EARLIEST),
        ("latest", OffsetReset.LATEST),
        ("none", OffsetReset.NONE),
        (OffsetReset.LATEST, OffsetReset.LATEST),
    ],
)
def test_words_of_old_and_new_are_accepted(word: Any, meant: OffsetReset) -> None:
    assert ConnectorConfig(group_id="g", auto_offset_reset=word).auto_offset_reset is meant


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"group_id": ""}, "group.id"),
        ({"group_id": "a/b"}, "group.id"),
        ({"group_id": ".."}, "group.id"),
        ({"group_id": "g" * 201}, "group.id"),
        ({"consumer_id": "a b"}, "consumer.id"),
        ({"auto_offset_reset": "middle"}, "auto.offset.reset"),
        ({"auto_commit_enable": 1}, "auto.commit.enable"),
        ({"auto_commit_interval_ms": 0}, "auto.commit.interval.ms"),
        ({"zookeeper_session_timeout_ms": 99}, "zookeeper.session.timeout.ms"),
        ({"rebalance_backoff_ms": 0.5}, "rebalance.backoff.ms"),
        ({"rebalance_max_retries": None}, "rebalance.max.retries"),
        ({"max_wait_ms": -1}, "max.wait.ms"),
    ],
)
def test_what_is_out_of_bounds_names_its_key(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{key}: "):
        ConnectorConfig(**{"group_id": "g", **settings})
