"""`pipeline cluster remove-stray`: record a deletion that ZooKeeper does not know of."""

import uuid

from pipeline.cli.terminal.client_config import zookeeper_security
from pipeline.cli.terminal.connect import ZOOKEEPER_CONNECT_MS, wall_clock
from pipeline.coordination.deleted_topics import DeletedTopic, write_record
from pipeline.coordination.interface import MAX_AT_ONCE, CoordinationClient
from pipeline.coordination.znodes import TOPICS, ClusterId, TopicAssignment, decode_uuid, topic_path
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.errors import ConfigurationError, CoordinationError, NoNodeError

UNKNOWN_NAME = ""


async def record_deletion(zookeeper: str, text: str) -> None:
    """Record that the topic of this id was deleted, unless it exists. Raises ConfigurationError, CoordinationError."""
    try:
        topic_id = decode_uuid("TOPIC-ID", text)
    except CoordinationError as error:
        raise ConfigurationError("TOPIC-ID", error.reason) from error
    async with open_zookeeper(
        zookeeper, connect_timeout_ms=ZOOKEEPER_CONNECT_MS, security=zookeeper_security()
    ) as client:
        await refuse_living(client, topic_id)
        record = DeletedTopic(topic_id=topic_id, topic=UNKNOWN_NAME, timestamp_ms=wall_clock(), is_complete=True)
        await write_record(client, record)


async def refuse_living(client: CoordinationClient, topic_id: uuid.UUID) -> None:
    """Raise ConfigurationError if a topic has this id, or may have it."""
    if await client.get_or_none(ClusterId.PATH) is None:
        reason = "knows no cluster: give the address and chroot of the brokers' zookeeper.connect"
        raise ConfigurationError("--zookeeper", reason)
    try:
        names = await client.children(TOPICS)
    except NoNodeError:
        names = ()
    for start in range(0, len(names), MAX_AT_ONCE):
        part = names[start : start + MAX_AT_ONCE]
        for name, value in zip(part, await client.get_each([topic_path(name) for name in part]), strict=True):
            if value is not None and TopicAssignment.decode(name, value.data).id == topic_id:
                reason = f"is topic {name}, which exists: delete it with `pipeline topic delete {name}`"
                raise ConfigurationError("TOPIC-ID", reason)
