from typing import Any

import pytest

from pipeline.client.registry.config import SerializerConfig
from pipeline.client.registry.subjects import (
    SUBJECT_NAME_STRATEGIES,
    find_subject_name_strategy,
    record_name_strategy,
    topic_record_name_strategy,
)
from pipeline.errors import ConfigurationError


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("TopicNameStrategy", "log-value", "log-key"),
        ("RecordNameStrategy", "shop.Order", "shop.Order"),
        ("TopicRecordNameStrategy", "log-shop.Order", "log-shop.Order"),
    ],
)
def test_subjects_of_strategies(name: str, value: str, key: str) -> None:
    strategy = find_subject_name_strategy(name)
    assert strategy is find_subject_name_strategy(f"io.confluent.kafka.serializers.subject.{name}")
    assert (strategy("log", False, "shop.Order"), strategy("log", True, "shop.Order")) == (value, key)


def test_a_type_without_a_name_has_no_record_subject() -> None:
    for strategy in (record_name_strategy, topic_record_name_strategy):
        with pytest.raises(ConfigurationError, match="needs a schema whose type has a name"):
            strategy("log", False, None)


def test_an_unknown_strategy() -> None:
    with pytest.raises(ConfigurationError, match="known are TopicNameStrategy, RecordNameStrategy"):
        find_subject_name_strategy("Topic")
    assert len(SUBJECT_NAME_STRATEGIES) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_latest_version": True}, "use.latest.version: registers nothing: set auto_register_schemas=False"),
        ({"auto_register_schemas": "no"}, "auto.register.schemas: is 'no', must be true or false"),
        ({"normalize_schemas": 1}, "normalize.schemas: is 1"),
        ({"use_schema_id": -1}, "use.schema.id: is -1"),
        ({"use_schema_id": True}, "use.schema.id: is True"),
        ({"use_schema_id": 2**31}, "use.schema.id: is 2147483648"),
        ({"latest_cache_ttl_sec": 0}, "latest.cache.ttl.sec: is 0"),
        ({"latest_cache_ttl_sec": float("nan")}, "latest.cache.ttl.sec: is nan"),
        ({"subject_name_strategy": "TopicNameStrategy"}, "subject.name.strategy: is 'TopicNameStrategy'"),
        ({"schema_id_serializer": "header"}, "schema.id.serializer: is 'header'"),
        (
            {"use_latest_version": True, "auto_register_schemas": False, "use_schema_id": 1},
            "use.schema.id: excludes use.latest.version",
        ),
    ],
)
def test_settings_that_cannot_be_used(settings: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SerializerConfig(**settings)
    assert message in str(caught.value)
