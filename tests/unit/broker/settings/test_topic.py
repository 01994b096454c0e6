import pytest

from pipeline.broker.replicas.logs import log_config
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import BROKER_DEFAULTS, readable_settings, topic_settings
from pipeline.errors import ConfigurationError
from pipeline.promotion import Promotion
from pipeline.provenance import Provenance

BROKER = BrokerConfig.from_settings(
    {"broker.id": 1, "log.dirs": "/data", "zookeeper.connect": "z:1", "log.segment.bytes": 2048, "log.roll.ms": 7}
)


def test_the_broker_says_what_the_topic_does_not() -> None:
    settings = topic_settings({"segment.ms": "9", "cleanup.policy": "compact,delete"}, BROKER)
    assert settings.segment_bytes == 2048
    assert settings.segment_ms == 9
    assert settings.cleanup_policy == "compact,delete"
    assert log_config(settings, 7).segment_ms == 9
    assert log_config(settings, 7).producer_expiration_ms == 7


@pytest.mark.parametrize("policy", ["delete", "compact", "compact, delete", "delete,compact"])
def test_cleanup_policies_decide_whether_records_are_compacted_or_deleted(policy: str) -> None:
    settings = topic_settings({"cleanup.policy": policy}, BROKER)
    assert settings.is_compacted == ("compact" in policy)
    assert settings.is_deleted_from == log_config(settings, 7).deletes == ("delete" in policy)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"segment.byte": "1"}, "Unknown topic config name: segment.byte; did you mean segment.bytes?"),
        ({"remote.storage.enable": "true"}, "Unknown topic config name"),
        ({"segment.bytes": "much"}, "Invalid value much for configuration segment.bytes"),
        ({"segment.bytes": None}, "segment.bytes"),
        ({"cleanup.policy": "shred"}, "delete, compact"),
        ({"compression.type": "rar"}, "compression.type"),
        ({"message.timestamp.type": "Never"}, "message.timestamp.type"),
        ({"min.insync.replicas": "0"}, "min.insync.replicas"),
        ({"mirror.partitions": "east"}, "Invalid value east for configuration mirror.partitions: is not JSON"),
    ],
)
def test_a_wrong_setting_is_named(overrides: dict[str, str | None], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        topic_settings(overrides, BROKER)


def test_stored_settings_are_read_as_far_as_possible() -> None:
    settings, ignored = readable_settings({"segment.ms": "9", "flush.ms": "soon", "other": "1"}, BROKER)
    assert settings.segment_ms == 9
    assert ignored == ("flush.ms", "other")


def test_stored_sources_that_cannot_be_read_leave_no_partition_without_a_check() -> None:
    settings, ignored = readable_settings({"mirror.source": "east", "mirror.partitions": "{"}, BROKER)
    assert ignored == ("mirror.partitions",)
    assert settings.provenance == Provenance()
    assert topic_settings({}, BROKER).provenance is None


def test_a_stored_promotion_that_cannot_be_read_still_refuses_copies() -> None:
    settings, ignored = readable_settings({"mirror.source": "east", "mirror.promoted": "{"}, BROKER)
    assert ignored == ("mirror.promoted",)
    assert settings.promotion == Promotion(at_ms=0)
    assert topic_settings({}, BROKER).promotion is None


ODD_VALUES = (
    "",
    "0",
    "-1",
    "1",
    "1024",
    "nan",
    "inf",
    "-inf",
    "1.0",
    "1e3",
    " 7 ",
    "true",
    "compact, delete",
    str(2**63 - 1),
)


@pytest.mark.parametrize("setting", sorted(BROKER_DEFAULTS.values()))
def test_no_default_that_a_broker_accepts_is_refused_by_its_topics(setting: str) -> None:
    accepted = 0
    for value in ODD_VALUES:
        try:
            config = BrokerConfig.from_settings(
                {"broker.id": 1, "log.dirs": "/data", "zookeeper.connect": "z:1", setting: value}
            )
        except ConfigurationError:
            continue
        topic_settings({}, config)
        accepted += 1
    assert accepted or setting in {"compression.type", "log.message.timestamp.type"}
