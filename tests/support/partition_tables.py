"""Records of the mirror's partition table, sound ones and others."""

import json
from typing import Any
from uuid import UUID

from pipeline.mirror.journals.record_document import MAX_RECORD_BYTES
from pipeline.mirror.journals.table import TABLE_TOPIC, Proposal, SourcePartition
from pipeline.model import TopicPartition

JOURNAL = TopicPartition(TABLE_TOPIC, 0)


def proposal(cluster: str, topic: str, partition: int, replica_topic: str | None = None) -> Proposal:
    source = SourcePartition(cluster=cluster, partition=TopicPartition(topic, partition), topic_id=UUID(int=7))
    return Proposal(source=source, replica_topic=replica_topic or topic)


def record(**changes: Any) -> bytes:
    return json.dumps(json.loads(proposal("east", "clicks", 0).encode()[1]) | changes).encode()


STRAY = [
    None,
    b"",
    b"{}",
    b"[]",
    b"null",
    b"\xff\xfe\x00",
    b"[" * 10_000,
    b"x" * (MAX_RECORD_BYTES + 1),
    b'{"a":' * 2_500 + b"1" + b"}" * 2_500,
    b'{"version":' + b"9" * 5_000 + b"}",
    record(version=2),
    record(version=True),
    record(version=1.0),
    record(partition=-1),
    record(partition=10**400),
    record(partition=1_000_000),
    record(partition="0"),
    record(partition=False),
    record(topic_id=1),
    record(topic_id="no id"),
    record(cluster="\ud800"),
    record(cluster="a/b"),
    record(cluster=""),
    record(topic="\udfff"),
    record(topic="_audit"),
    record(topic="a/b"),
    record(topic=["clicks"]),
    record(replica_topic=".."),
    record(replica_topic="_mirror_partitions"),
    record(replica_topic="x" * 250),
    record(replica_topic="clicks\n"),
    record(cluster_id=7),
    record(cluster_id="\ud800"),
]
