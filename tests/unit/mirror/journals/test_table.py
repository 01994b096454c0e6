"""The partition table: deterministic, append-only, agreed between mirrors that write at the same time."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigurationError
from pipeline.mirror.journals.table import PartitionTable, PartitionTableError, Proposal, decode_proposal
from pipeline.mirror.selection import TopicSelection, compile_patterns
from pipeline.provenance import MAX_PARTITIONS
from tests.support.partition_tables import STRAY, proposal, record

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


def test_a_topic_has_the_replica_of_its_first_entry_and_a_replica_knows_its_topics() -> None:
    table = PartitionTable()
    for topic, number, replica in (("a", 0, "all"), ("b", 0, "all"), ("a", 1, "other")):
        table.apply(proposal("east", topic, number, replica))
    assert (table.replica_of("east", "a"), table.replica_of("west", "a")) == ("all", None)
    assert table.topics_of("all") == [("east", "a"), ("east", "b")]
    assert (table.sources_of("all"), table.topics_of("none")) == (["east"], [])


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


@pytest.mark.parametrize("value", STRAY)
def test_other_records_are_refused(value: bytes | None) -> None:
    with pytest.raises(PartitionTableError):
        decode_proposal(value)


@given(st.binary(max_size=50))
def test_bytes_that_are_no_assignment_are_refused(value: bytes) -> None:
    with pytest.raises(PartitionTableError):
        decode_proposal(value)


def test_a_topic_that_returned_takes_over_the_partition_of_the_former_one() -> None:
    first, other = proposal("east", "clicks", 0), proposal("east", "clicks", 1)
    new = replace(first.source, topic_id=UUID(int=8))
    taking = replace(first, source=new, replaces=first.source.topic_id, takes_over=True)
    assert decode_proposal(taking.encode()[1]) == taking
    table = table_of([first, other, taking])
    assert table.missing([taking]) == []
    assert [(each.source.topic_id.int, each.replica.partition) for each in table.assignments()] == [
        (7, 0),
        (7, 1),
        (8, 0),
    ]
    assert {each.source.topic_id.int: each.replica.partition for each in table.newest_assignments()} == {8: 0, 7: 1}
    assert (table.is_replaced(first.source), table.is_taken_over(first.source)) == (True, True)
    assert (table.is_replaced(new), table.is_taken_over(new), table.is_taken_over(other.source)) == (False,) * 3
    table.apply(proposal("east", "clicks", 2))
    assert table.newest_assignments()[-1].replica.partition == 2, "numbers go on without a gap"


@pytest.mark.parametrize("changes", [{"replica_topic": "other"}, {"replaces": UUID(int=9)}, {"takes_over": False}])
def test_only_the_partition_of_what_is_replaced_is_taken_over(changes: Any) -> None:
    first = proposal("east", "clicks", 0)
    new = replace(first.source, topic_id=UUID(int=8))
    taking = replace(first, source=new, replaces=first.source.topic_id, takes_over=True)
    table = table_of([first, replace(taking, **changes)])
    newest = table.newest_assignments()[0]
    assert newest.replica.partition == (1 if "takes_over" in changes else 0)
    assert (newest.source == new) == ("takes_over" in changes)
    assert not table.is_taken_over(first.source)


def test_records_of_older_mirrors_have_no_cluster_id_and_unknown_fields_are_ignored() -> None:
    assert decode_proposal(record(hue="blue")) == proposal("east", "clicks", 0)
    assert decode_proposal(record(cluster_id=None)).source.cluster_id is None
    assert decode_proposal(record(cluster_id="E-1")).source.cluster_id == "E-1"


@pytest.mark.long
def test_a_replica_topic_has_no_more_entries_than_a_topic_may_have_partitions() -> None:
    table = table_of(proposal(f"c{number}", "t", 0, "clicks") for number in range(MAX_PARTITIONS))
    with pytest.raises(PartitionTableError, match="one partition of clicks too many"):
        table.apply(proposal("east", "clicks", 0))
    table.apply(proposal("east", "views", 0))
    assert table.partition_count("clicks") == MAX_PARTITIONS


def with_id(one: Proposal, cluster_id: str) -> Proposal:
    return replace(one, source=replace(one.source, cluster_id=cluster_id))


def test_a_name_belongs_to_the_first_cluster_id_that_a_record_gives() -> None:
    older = proposal("east", "clicks", 0)
    table = table_of([older])
    assert table.cluster_id("east") is None
    assert table.has_source("east")
    wanted = [with_id(proposal("east", "clicks", number), "E-1") for number in range(3)]
    assert table.missing(wanted) == wanted
    assert table_of([older, *wanted[1:]]).missing(wanted) == []
    table.apply(wanted[0])
    table.apply(with_id(proposal("east", "clicks", 1), "E-2"))
    assert (table.cluster_id("east"), table.names_of("E-1"), table.names_of("E-2")) == ("E-1", ["east"], [])
    assert table.missing(wanted) == wanted[2:]


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
