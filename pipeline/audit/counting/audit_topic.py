"""The audit topic of a cluster, and the settings without which monitoring events are lost.

Invariant: events are kept for ever, whatever the brokers' defaults are, because an audit service reads the whole topic
whenever it starts. A topic with other settings is corrected; if that is refused, each check logs an error.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import trio

from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.client.admin.resource_configs import ConfigResource, alter_configs, describe_topic_settings_at
from pipeline.client.admin.topics import DEFAULT_TIMEOUT_S, NewTopic, create_topics, replicas_for
from pipeline.client.cluster.cluster import Cluster
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_configs import ResourceType

MAX_EVENT_BYTES: Final = 1_048_588
"""Largest batch of events: more than `MAX_ROWS` rows take (see `events/encoding.py`)."""

SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        # A power failure may take acknowledged records together with the events that told of them, but for this.
        "flush.messages": "1",
        # So may an unclean election, where brokers allow it: better no verdict until the leader is back.
        "unclean.leader.election.enable": "false",
        "compression.type": "producer",
        "max.message.bytes": str(MAX_EVENT_BYTES),
        # Kafka refuses records that are an hour ahead, unless a broker stamps them.
        "message.timestamp.type": "LogAppendTime",
    }
)

logger = get_logger(__name__)


async def ensure_audit_topic(cluster: Cluster) -> None:
    """Create the audit topic unless it exists, and correct its settings. Raises KafkaError, NetworkError.

    Logs an error if the settings cannot be read or corrected.
    """
    view = await cluster.refresh(timeout_s=DEFAULT_TIMEOUT_S)
    if AUDIT_TOPIC not in view.topics:
        replicas = await replicas_for(cluster)
        topic = NewTopic(name=AUDIT_TOPIC, partitions=1, replication_factor=replicas, configs=SETTINGS)
        await create_topics(cluster, [topic], exist_ok=True)
    try:
        found = await _settings_of_topic(cluster)
        wrong = settings_to_correct(found)
        if wrong:
            topic_settings = ConfigResource(ResourceType.TOPIC, AUDIT_TOPIC)
            await alter_configs(cluster, {topic_settings: wrong}, timeout_s=DEFAULT_TIMEOUT_S)
            logger.warning("audit_topic_corrected", settings=wrong, before={name: found.get(name) for name in wrong})
    except PipelineError as error:
        logger.error(
            "audit_topic_not_corrected",
            needed=dict(SETTINGS),
            error=str(error),
            help=f"monitoring events may be lost: set these settings of the topic {AUDIT_TOPIC}",
        )


async def _settings_of_topic(cluster: Cluster) -> dict[str, str]:
    """Return the settings as any broker sees them: one may not know of the new topic yet."""
    deadline = trio.current_time() + DEFAULT_TIMEOUT_S
    failures = 0
    while True:
        try:
            return await describe_topic_settings_at(
                cluster, None, AUDIT_TOPIC, tuple(SETTINGS), timeout_s=deadline - trio.current_time()
            )
        except KafkaError as error:
            failures += 1
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not await cluster.back_off(failures, deadline):
                raise


def settings_to_correct(found: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the audit topic needs, and has not. Larger batches than necessary are no fault."""
    wrong = {name: value for name, value in SETTINGS.items() if found.get(name) != value}
    size = found.get("max.message.bytes", "")
    if size.isdecimal() and int(size) >= MAX_EVENT_BYTES:
        wrong.pop("max.message.bytes", None)
    return wrong
