"""Range sums: partitions whose leader is not known."""

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from pipeline.client.admin.range_sums import can_sum_ranges
from pipeline.errors import NetworkError
from pipeline.model import TopicPartition
from tests.support.brokers import serving_cluster
from tests.support.mirrors import DEADLINE_S, make


async def test_a_partition_that_had_no_leader_is_answered_soon_after_it_has_one(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path / "east") as east:
        await make(east)
        topic = east.view.topics["clicks"]
        leaderless = replace(topic, partitions={0: replace(topic.partitions[0], leader=None)})
        east.view = replace(east.view, topics={"clicks": leaderless})
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(east.wait_for_new_view)
                with pytest.raises(NetworkError, match="the leader is unknown"):
                    await can_sum_ranges(east, TopicPartition("clicks", 0))
        assert await can_sum_ranges(east, TopicPartition("clicks", 0))
