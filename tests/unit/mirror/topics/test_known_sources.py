"""What a mirror derives from the answers of many sources: one that grows costs the others nothing."""

import uuid
from types import SimpleNamespace
from typing import Any, cast

from pipeline.client.cluster.metadata import PartitionMetadata, TopicMetadata
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.table import PartitionTable
from pipeline.mirror.live_settings import checked_flows
from pipeline.mirror.topics.known_sources import KnownSources
from pipeline.mirror.topics.selected_topics import SelectedTopics
from pipeline.mirror.topics.source_topics import SourceTopic
from pipeline.model import BrokerId, TopicPartition
from pipeline.provenance import CopiedRange, Origin, Provenance


def _clicks(name: str, partitions: int) -> dict[str, TopicMetadata]:
    found = {number: PartitionMetadata(leader=BrokerId(1)) for number in range(partitions)}
    return {"clicks": TopicMetadata(name="clicks", id=uuid.uuid5(uuid.NAMESPACE_URL, name), partitions=found)}


def _sources(table: PartitionTable, **ids: str) -> KnownSources:
    """Return the sources east and west of a mirror that starts; those with `ids` have answered."""
    config = MirrorConfig.from_settings(
        {
            "destination.bootstrap.servers": "hub:9092",
            "topics": [".*"],
            "http.listen": "127.0.0.1:0",
            "sources": [{"name": name, "bootstrap.servers": f"{name}:9092"} for name in ("east", "west")],
        }
    )
    selected = SelectedTopics(table)
    hub = cast("Any", SimpleNamespace(view=SimpleNamespace(cluster_id="hub")))
    known = KnownSources(hub, table, selected, CurrentConfig(config))
    selected.set_flows(checked_flows(config))
    known.set_sources({name: known.known(hub) for name in ("east", "west")})
    known.cluster_ids.update(ids)
    for name in ids:
        known.by_name[name].is_accepted = True
    return known


def _copies(*paths: tuple[str, ...], source: str = "middle") -> SourceTopic:
    """Return an aggregate topic: each of its partitions came by one of these paths."""
    ranges = [
        CopiedRange(
            origin=Origin(source=source, path=path, topic="clicks", topic_id=uuid.UUID(int=5), partition=number),
            at=number,
            count=1,
        )
        for number, path in enumerate(paths)
    ]
    return SourceTopic(values={}, provenance=Provenance(tuple(ranges)))


def _wanted(known: KnownSources, name: str) -> list[str]:
    return [str(each.source.partition) for each in known.wanted(name).proposals]


def test_partitions_of_an_aggregate_topic_come_by_a_second_path_each_for_itself() -> None:
    """What comes from clusters that the mirror does not copy itself comes by this path alone."""
    known = _sources(PartitionTable(), east="id of east", west="id of west")
    known.selected.take("east", _clicks("east", 1))
    known.selected.take("west", _clicks("west", 3))
    copies = _copies(("id of south", "id of middle"), ("id of east", "id of middle"), ("id of north", "id of middle"))
    known.by_name["west"].described.take({"clicks": copies})
    assert _wanted(known, "west") == ["clicks-0", "clicks-2"]
    assert [str(partition) for partition, _ in known.wanted("west").refused] == ["clicks-1"]


def test_a_source_that_is_away_when_the_mirror_starts_is_known_by_the_id_in_the_table() -> None:
    """The mirror of the other source may have another name for it. What was copied would come a second time."""
    table = PartitionTable()
    before = _sources(table, east="id of east", west="id of west")
    before.selected.take("east", _clicks("east", 1))
    for proposal in table.missing(before.wanted("east").proposals):
        table.apply(proposal)
    known = _sources(table, west="id of west")
    known.selected.take("west", _clicks("west", 1))
    known.by_name["west"].described.take({"clicks": _copies(("id of east",), source="primary")})
    assert _wanted(known, "west") == []
    known = _sources(table, east="id of a cluster to which east's addresses lead by mistake", west="id of west")
    known.reject("east")
    known.selected.take("west", _clicks("west", 1))
    known.by_name["west"].described.take({"clicks": _copies(("id of east",), source="primary")})
    assert _wanted(known, "west") == []


def test_a_topic_that_its_cluster_does_not_name_for_a_moment_does_not_come_by_a_second_path() -> None:
    """Entries of the table stay for good, and what was copied would come again from its beginning."""
    table = PartitionTable()
    known = _sources(table, east="id of east", west="id of west")
    known.selected.take("east", {})
    known.selected.take("west", _clicks("west", 1))
    known.by_name["west"].described.take({"clicks": _copies(("id of east",))})
    assert _wanted(known, "west") == ["clicks-0"]  # east does not have it, and nothing of it was copied
    known.selected.take("east", _clicks("east", 1))
    for proposal in table.missing(known.wanted("east").proposals):
        table.apply(proposal)
    known.selected.take("east", {})
    assert _wanted(known, "west") == []


def test_the_entries_of_a_source_are_found_again_only_when_it_has_new_ones() -> None:
    table = PartitionTable()
    known = _sources(table, east="id of east", west="id of west")
    selected = known.selected

    def grow(name: str, partitions: int) -> None:
        selected.take(name, _clicks(name, partitions))
        for proposal in table.missing(known.wanted(name).proposals):
            table.apply(proposal)

    grow("east", 2)
    grow("west", 1)
    assert known.partition_counts() == {"clicks": 3}
    east, west = known.entries("east"), known.entries("west")
    grow("west", 2)
    assert known.partition_counts() == {"clicks": 4}
    assert known.entries("east") is east
    assert known.entries("west") is not west
    assert [str(each.replica) for each in table.newest_assignments_of("west")] == ["clicks-2", "clicks-3"]
    assert (table.size_of("east"), table.size_of("west"), table.size_of("south"), table.size) == (2, 2, 0, 4)
    assert table.assignment("south", TopicPartition("clicks", 0)) is None
    assert (table.has_source("west"), table.has_source("south")) == (True, False)
