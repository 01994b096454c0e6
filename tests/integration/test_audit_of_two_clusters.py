"""An hour of which one live cluster has rows needs the word of the others that have the topic, too."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.audit.judgement.verdicts import Expectations, MirroredTopic, Status
from tests.support.audited.cells import FIRST
from tests.support.audited.way import HOURS, TOPIC, Way


class TwoClusters(Way):
    west_read_to_ms: int | None = None

    def expectations(self) -> Expectations:
        found = super().expectations()
        read = dict(found.read_to_ms)
        if self.west_read_to_ms is not None:
            read["west"] = self.west_read_to_ms
        return replace(
            found,
            live_clusters=["east", "west"],
            partitions={**found.partitions, ("west", TOPIC): 2},
            mirrored=[*found.mirrored, MirroredTopic(cluster="west", topic=TOPIC, replica_topic=TOPIC)],
            read_to_ms=read,
        )


@pytest.mark.parametrize("read_to_ms", [None, HOURS[0] - 1, HOURS[0] + 1000])
def test_a_cluster_without_rows_must_have_given_its_word(read_to_ms: int | None, tmp_path: Path) -> None:
    way = TwoClusters(tmp_path)
    way.west_read_to_ms = read_to_ms
    way.run()
    hour = way.hours()[FIRST]
    assert hour.status in (Status.UNKNOWN, Status.PENDING)
    assert any("west" in str(one) for one in hour.missing_witnesses)
