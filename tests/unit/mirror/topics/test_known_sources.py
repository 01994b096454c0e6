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
from pipeline.model import BrokerId, TopicPartition


def _clicks(name: str, partitions: int) -> dict[str, TopicMetadata]:
    found = {number: PartitionMetadata(leader=BrokerId(1)) for number in range(partitions)}
    return {"clicks": TopicMetadata(name="clicks", id=uuid.uuid5(uuid.NAMESPACE_URL, name), partitions=found)}


def test_the_entries_of_a_source_are_found_again_only_when_it_has_new_ones() -> None:
    config = MirrorConfig.from_settings(
        {
            "destination.bootstrap.servers": "hub:9092",
            "topics": [".*"],
            "http.listen": "127.0.0.1:0",
            "sources": [{"name": name, "bootstrap.servers": f"{name}:9092"} for name in ("east", "west")],
        }
    )
    table = PartitionTable()
    selected = SelectedTopics(table)
    hub = cast("Any", SimpleNamespace(view=SimpleNamespace(cluster_id="hub")))
    known = KnownSources(hub, table, selected, CurrentConfig(config))
    selected.set_flows(checked_flows(config))
    known.set_sources({name: known.known(hub) for name in ("east", "west")})
    known.cluster_ids.update(east="id of east", west="id of west")

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
