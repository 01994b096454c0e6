"""Metadata responses about one partition."""

import uuid

from pipeline.model import TopicPartition
from pipeline.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

T0 = TopicPartition("t", 0)
ID = uuid.UUID(int=7)
BROKERS = [MetadataResponseBroker(node_id=number, host="h", port=9000 + number) for number in (1, 2)]


def response(leader: int, epoch: int, *, topic_id: uuid.UUID = ID, error: int = 0) -> MetadataResponse:
    partition = MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch, error_code=0)
    topic = MetadataResponseTopic(
        name="t", topic_id=topic_id, error_code=error, partitions=[] if error else [partition]
    )
    return MetadataResponse(brokers=BROKERS, controller_id=2, cluster_id="c", topics=[topic])
