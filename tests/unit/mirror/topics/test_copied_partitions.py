"""Entries of the table for one source, as its answer and the flows ask for them."""

from uuid import UUID

from pipeline.mirror.journals.table import PartitionTable, Proposal, SourcePartition
from pipeline.mirror.topics.copied_partitions import WantedPartitions, entries_of
from pipeline.model import TopicPartition

OLD, NEW = UUID(int=1), UUID(int=2)


def proposal(topic: str, number: int, topic_id: UUID = OLD, *, cluster: str = "east") -> Proposal:
    source = SourcePartition(
        cluster=cluster, partition=TopicPartition(topic, number), topic_id=topic_id, cluster_id=f"id of {cluster}"
    )
    return Proposal(source=source, replica_topic="all" if topic == "clicks" else topic)


def wanted(*proposals: Proposal) -> WantedPartitions:
    return WantedPartitions(proposals=proposals, paths=[("first", "id of east")] * len(proposals), refused=[])


def test_wanted_partitions_are_found_by_replica_with_their_origins() -> None:
    table = PartitionTable()
    for applied in (proposal("clicks", 0), proposal("clicks", 0, cluster="west"), proposal("clicks", 1)):
        table.apply(applied)
    table.apply(proposal("orders", 0))
    found = entries_of("east", wanted(proposal("clicks", 0), proposal("clicks", 1), proposal("clicks", 2)), table)
    assert list(found.copied) == ["all"]
    copied = found.copied["all"]
    assert copied.needed == 3
    assert [assignment.replica.partition for _, assignment in copied.entries] == [0, 2]
    assert {number: origin.partition for number, origin in copied.origins.items()} == {0: 0, 2: 1}
    assert {origin.path for origin in copied.origins.values()} == {("first", "id of east")}
    assert copied.tokens == {number: origin.token() for number, origin in copied.origins.items()}
    assert [str(assignment.source.partition) for assignment in found.unwanted] == ["orders-0"]
    assert (copied.recreated, found.recreated) == ([], [])


def test_a_recreated_topic_is_not_copied_until_its_entry_is_replaced() -> None:
    table = PartitionTable()
    table.apply(proposal("clicks", 0))
    now = proposal("clicks", 0, NEW)
    found = entries_of("east", wanted(now), table)
    copied = found.copied["all"]
    assert ({number: origin.topic_id for number, origin in copied.origins.items()}, copied.tokens) == ({0: OLD}, {})
    assert [(each, assignment.source.topic_id) for each, assignment in found.recreated] == [(now, OLD)]
    assert [(source, assignment.source.topic_id) for source, assignment in copied.recreated] == [(now.source, OLD)]
