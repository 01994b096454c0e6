"""Sources whose names stand for the wrong cluster are refused; all others are copied."""

from uuid import UUID

import pytest

from pipeline.mirror.journals.table import PartitionTable, Proposal, SourcePartition
from pipeline.mirror.topics.source_identity import refusal_of
from pipeline.model import TopicPartition


def table_of(*sources: tuple[str, str | None]) -> PartitionTable:
    table = PartitionTable()
    for number, (name, cluster_id) in enumerate(sources):
        partition = TopicPartition("clicks", number)
        source = SourcePartition(cluster=name, partition=partition, topic_id=UUID(int=1), cluster_id=cluster_id)
        table.apply(Proposal(source=source, replica_topic="clicks"))
    return table


EMPTY = table_of()


@pytest.mark.parametrize(
    ("name", "ids", "table", "reason"),
    [
        ("east", {"east": "E", "west": "W"}, EMPTY, None),
        ("east", {"east": None, "west": None}, EMPTY, None),
        ("east", {"east": "H", "west": "W"}, EMPTY, "the destination itself"),
        ("east", {"east": "E", "west": "E"}, EMPTY, None),
        ("west", {"east": "E", "west": "E"}, EMPTY, "the same cluster as east"),
        # The name that the table has for a cluster goes before the order of the settings.
        ("east", {"east": "E", "west": "E"}, table_of(("west", "E")), "the same cluster as west"),
        ("west", {"east": "E", "west": "E"}, table_of(("west", "E")), None),
        ("west", {"east": None, "west": "E"}, table_of(("east", "E")), "the same cluster as east"),
        ("east", {"east": "F", "west": "W"}, table_of(("east", "E")), "bootstrap.servers lead to cluster F"),
        ("east", {"east": "E"}, table_of(("east", None)), None),
        ("east", {"east": "E"}, table_of(("oriental", "E")), "knows as oriental"),
        # Two mirrors of different topics may have names of their own for one cluster, from before ids were recorded.
        ("east", {"east": "E"}, table_of(("oriental", "E"), ("east", None)), None),
    ],
)
def test_a_source_is_refused_if_its_name_stands_for_the_wrong_cluster(
    name: str, ids: dict[str, str | None], table: PartitionTable, reason: str | None
) -> None:
    refusal = refusal_of(name, ids, "H", table)
    if reason is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert reason in refusal
