"""Requests about committed offsets, as tests send them to a broker."""

import uuid
from collections.abc import Sequence
from typing import Any

from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pipeline.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tests.support.broker_in_process import Broker


async def topic_id(broker: Broker, name: str) -> uuid.UUID:
    topics = [MetadataRequestTopic(name=name)]
    response = await broker.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
    found: uuid.UUID = response.topics[0].topic_id
    return found


async def commit(
    broker: Broker,
    group_id: str,
    topic: str,
    *parts: tuple[int, int, str | None],
    generation: int = -1,
    member_id: str = "",
    by_id: uuid.UUID | None = None,
) -> Sequence[int]:
    identified = by_id or await topic_id(broker, topic)
    sent = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=4, committed_metadata=metadata
        )
        for index, offset, metadata in parts
    ]
    response = await broker.ask(
        OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[OffsetCommitRequestTopic(topic_id=identified, partitions=sent)],
        )
    )
    return [part.error_code for part in response.topics[0].partitions]


async def fetch(broker: Broker, group_id: str, *, require_stable: bool = False) -> Any:
    """(error, {(topic, partition): (offset, epoch, metadata)}) of all that a group committed."""
    asked = [OffsetFetchRequestGroup(group_id=group_id, topics=None)]
    response = await broker.ask(OffsetFetchRequest(groups=asked, require_stable=require_stable))
    (group,) = response.groups
    names = {await topic_id(broker, name): name for name in ("clicks", "views")}
    return group.error_code, {
        (names[topic.topic_id], part.partition_index): (
            part.committed_offset,
            part.committed_leader_epoch,
            part.metadata,
        )
        for topic in group.topics
        for part in topic.partitions
    }
