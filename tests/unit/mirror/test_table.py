"""The partition table: deterministic, append-only, agreed between mirrors that write at the same time."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigurationError
from pipeline.mirror.selection import TopicSelection, compile_patterns
from pipeline.mirror.table import PartitionTable, PartitionTableError, Proposal, SourcePartition, decode_proposal
from pipeline.model import TopicPartition


def proposal(cluster: str, topic: str, partition: int, replica_topic: str | None = None) -> Proposal:
    source = SourcePartition(cluster=cluster, partition=TopicPartition(topic, partition), topic_id=UUID(int=7))
    return Proposal(source=source, replica_topic=replica_topic or topic)


proposals = st.builds(
    proposal,
    st.sampled_from(["east", "west"]),
    st.sampled_from(["a", "b"]),
    st.integers(0, 3),
    st.sampled_from(["a", "b"]),
)


def table_of(journal: Any) -> PartitionTable:
    table = PartitionTable()
    for one in journal:
        table.apply(one)
    return table


def test_two_sources_lie_side_by_side_and_growth_appends() -> None:
    table = table_of([proposal("east", "clicks", 0), proposal("west", "clicks", 0), proposal("east", "clicks", 1)])
    lines = {(a.source.cluster, a.source.partition.partition): a.replica.partition for a in table.assignments()}
    assert lines == {("east", 0): 0, ("west", 0): 1, ("east", 1): 2}
    assert table.partition_count("clicks") == 3
    assert table.missing([proposal("west", "clicks", 0), proposal("west", "clicks", 1)]) == [
        proposal("west", "clicks", 1)
    ]


@given(st.lists(proposals, max_size=20), st.lists(proposals, max_size=10))
def test_lines_never_change_and_replicas_are_numbered_without_gaps(journal: Any, more: Any) -> None:
    before = table_of(journal)
    after = table_of([*journal, *more])
    assert after.assignments()[: len(before.assignments())] == before.assignments()
    for topic in ("a", "b"):
        numbers = [a.replica.partition for a in after.assignments() if a.replica.topic == topic]
        assert numbers == list(range(after.partition_count(topic)))
    assert len({(a.source.cluster, a.source.partition) for a in after.assignments()}) == len(after.assignments())


@given(proposals)
def test_journal_records_survive_the_wire(one: Proposal) -> None:
    assert decode_proposal(one.encode()[1]) == one


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"version":2}', b"null", b'{"version":1,"topic_id":1}'])
def test_other_records_are_refused(value: bytes) -> None:
    with pytest.raises(PartitionTableError):
        decode_proposal(value)


def test_selection_matches_whole_names_and_never_internal_topics() -> None:
    selection = TopicSelection(
        compile_patterns("topics", ["click.*", "_.*"]), compile_patterns("exclude", ["click_test"])
    )
    assert selection.selects("clicks")
    assert not selection.selects("my_clicks")
    assert not selection.selects("click_test")
    assert not selection.selects("_schemas")
    with pytest.raises(ConfigurationError, match="topics"):
        compile_patterns("topics", ["("])
