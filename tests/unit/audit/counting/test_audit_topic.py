"""The audit topic keeps its events, whatever the brokers' defaults are and whoever created it."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pipeline.audit.counting import audit_topic
from pipeline.audit.counting.audit_topic import MAX_EVENT_BYTES, SETTINGS, ensure_audit_topic, settings_to_correct
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.client.admin.resource_configs import describe_topic_settings_at
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.protocol.errors import ErrorCode, KafkaError
from tests.support.brokers import serving_cluster

HOSTILE: dict[str, Any] = {
    "log_cleanup_policy": "compact",
    "log_retention_ms": "1000",
    "log_retention_bytes": "1000",
    "compression_type": "gzip",
    "message_max_bytes": "2000",
    "unclean_leader_election_enable": "true",
}
WRONG = {
    "cleanup.policy": "compact,delete",
    "retention.ms": "60000",
    "retention.bytes": "5000",
    "max.message.bytes": "2000",
    "message.timestamp.type": "CreateTime",
}


async def settings_now(cluster: Cluster) -> dict[str, str]:
    return await describe_topic_settings_at(cluster, None, AUDIT_TOPIC, tuple(SETTINGS), timeout_s=30)


async def test_a_new_topic_keeps_all_events_whatever_the_brokers_defaults_are(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path, **HOSTILE) as cluster:
        await ensure_audit_topic(cluster)
        assert await settings_now(cluster) == SETTINGS


async def test_neither_power_failures_nor_unclean_elections_take_acknowledged_events(tmp_path: Path) -> None:
    """Records that are lost in the same way would be lost together with the events that tell of them."""
    async with serving_cluster(tmp_path, **HOSTILE) as cluster:
        await ensure_audit_topic(cluster)
        found = await settings_now(cluster)
    assert (found["flush.messages"], found["unclean.leader.election.enable"]) == ("1", "false")


async def test_a_topic_that_was_created_with_other_settings_is_corrected_once(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path, **HOSTILE) as cluster:
        await create_topics(cluster, [NewTopic(name=AUDIT_TOPIC, partitions=1, configs=WRONG)])
        with capture_logs() as logs:
            await ensure_audit_topic(cluster)
            await ensure_audit_topic(cluster)
        assert await settings_now(cluster) == SETTINGS
    assert [log["event"] for log in logs if log["event"].startswith("audit")] == ["audit_topic_corrected"]


async def test_a_correction_that_is_refused_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_arguments: Any, **_named: Any) -> None:
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic _audit")

    monkeypatch.setattr(audit_topic, "alter_configs", refuse)
    async with serving_cluster(tmp_path) as cluster:
        await create_topics(cluster, [NewTopic(name=AUDIT_TOPIC, partitions=1, configs=WRONG)])
        with capture_logs() as logs:
            await ensure_audit_topic(cluster)
    (said,) = [log for log in logs if log["event"] == "audit_topic_not_corrected"]
    assert said["log_level"] == "error"
    assert said["needed"] == SETTINGS
    assert "set these settings of the topic _audit" in said["help"]


def test_larger_batches_than_necessary_are_no_fault() -> None:
    larger = {**SETTINGS, "max.message.bytes": str(MAX_EVENT_BYTES + 1)}
    assert settings_to_correct(larger) == {}
    assert settings_to_correct({**SETTINGS, "max.message.bytes": "1"}) == {"max.message.bytes": str(MAX_EVENT_BYTES)}
    assert settings_to_correct({}) == SETTINGS
